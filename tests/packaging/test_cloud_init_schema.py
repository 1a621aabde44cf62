"""The user data before the judge that reads it on the machine: Debian's own cloud-init."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "user_data.yaml"

pytestmark = pytest.mark.skipif(
    shutil.which("cloud-init") is None and os.environ.get("CLOUDTRAIN_REQUIRE_CLOUD_INIT") != "1",
    reason="cloud-init is not installed",
)


def schema(path: Path) -> subprocess.CompletedProcess[str]:
    """What ``cloud-init schema`` says of a file. Its Python is the system's: ours may have no part in it."""
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    command = ["cloud-init", "schema", "--config-file", str(path)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_cloud_init_takes_the_user_data() -> None:
    said = schema(GOLDEN)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "Valid" in said.stdout
    assert "deprecat" not in (said.stdout + said.stderr).lower().replace("deprecations: \n", "")


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("bootcmd", "bootcmd: 5\n"), ("ssh_deletekeys", "ssh_deletekeys: sometimes\n"), ("ssh_keys", "ssh_keys: [a]\n")],
)
def test_it_would_refuse_a_wrong_one(key: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("#cloud-config\n" + wrong)
    said = schema(path)
    assert said.returncode == 1
    assert key in said.stdout + said.stderr
