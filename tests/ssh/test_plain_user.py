"""Local hosts for a user without rights: what most people are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.plain_user import PROJECT, plain_user
from tests.ssh.hostkit import KINDS, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

_PROGRAM = """
import os, sys
from pathlib import Path
from tests.ssh.hostkit import Rig, alive

kind, root = sys.argv[1:]
assert os.geteuid() != 0
rig = Rig(kind, Path(root), bootcmd=["systemd-run --unit=x --on-calendar='2099-01-01 00:00:00 UTC' poweroff"])
try:
    print(rig.run("id -u; python -c 'import yaml, sys; print(sys.prefix)'; cat", stdin=b"from stdin").out)
    rig.run("setsid sh -c 'trap : TERM; echo $$ > pid; while :; do sleep 0.1; done' >/dev/null 2>&1 &")
    pid = rig.pid()
    assert alive(pid)
    assert "has no sudo" in rig.run("sudo id").err
    assert rig.run("command -v python3").out.strip() == f"{root}/home/venv/bin/python3"
    assert rig.run("poweroff").code == 0
    assert rig.host.poweroff_requested()
    rig.host.kill(grace_s=0.1)
    assert not alive(pid)
    assert [path.name for path in Path(root).iterdir()] == ["console.log"]
finally:
    rig.close()
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_user_has_hosts_too(kind: str) -> None:
    require(kind)
    with plain_user() as user:
        done = subprocess.run(
            [*user.words, sys.executable, "-c", _PROGRAM, kind, str(user.folder / "host")],
            cwd=PROJECT,
            env={"PATH": os.environ["PATH"], "HOME": str(user.folder), "PYTHONPATH": str(PROJECT), "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert done.stdout == f"{user.uid}\n{user.folder}/host/home/venv\nfrom stdin\n"
