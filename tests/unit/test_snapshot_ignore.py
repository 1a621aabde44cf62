"""Ignore files mean what they mean to git: the whole of it is compared with git itself on a real tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.provisioner.shipping.snapshot import take

TREE = [
    "a",
    "b.py",
    "dir/a",
    "dir/b.py",
    "dir/sub/a",
    "dir/sub/x.txt",
    "sub/dir/a",
    "x y/a",
    "[a]/b",
    "a.b/#c",
    "!n",
    "ab",
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not shutil.which("git"):
        pytest.skip("needs git")
    root = tmp_path_factory.mktemp("repository")
    for name in TREE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    subprocess.run(["git", "init", "-q", root], check=True)
    yield root


def git_keeps(root: Path) -> list[str]:
    clean = {"PATH": os.environ["PATH"], "HOME": str(root / "none"), "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    out = subprocess.run(command, cwd=root, env=clean, check=True, capture_output=True).stdout
    return sorted(os.fsdecode(name) for name in out.split(b"\0") if name)


def we_keep(root: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as into:
        take(root, Path(into))
        rows = json.loads(Path(into, "snapshot.json").read_text())["files"]
        return sorted(row["path"] for row in rows if not row.get("dir"))


PATTERNS = r"""a|/a|a/|dir/|dir/*|!dir/b.py|**/a|dir/**|dir/**/a|*|!*/|!*.py|sub/dir|*.txt|x\ y/|x y |\#c|#c|\!n|!n
[a-b]|[!a]|[]]|\[a]/|[[:alpha:]]|**|***/a|d**r/a|/|//|dir//a|a\|[|[z-a]|[^b]*|dir/sub/|!dir/sub/a|***|[[:x:]]|!a"""
LINES = st.lists(
    st.one_of(
        st.text(alphabet="ab*/?!.[]\\ x-#sdir\r", max_size=7),
        st.sampled_from(PATTERNS.replace("\n", "|").split("|")),
    ),
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(lines=LINES, nested=LINES)
def test_ignore_files_mean_what_they_mean_to_git(repository: Path, lines: list[str], nested: list[str]) -> None:
    (repository / ".gitignore").write_text("\n".join(lines) + "\n", newline="")
    (repository / "dir" / ".gitignore").write_text("\n".join(nested) + "\n", newline="")
    assert we_keep(repository) == git_keeps(repository)
