"""What the job's own command and files say of the Python that they need. A reading, not a proof: what it can't tell is
not required."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

_SCRIPT_BYTES = 1 << 20  # a generated file of megabytes is no training script
_COMMANDS = re.compile(r"\b(torchrun|torch\.distributed\.(?:run|launch)|cloudtrain\.trainer)\b")
# At the beginning of a line: an import under `try` or `if` may be one that the script can do without.
_IMPORTS = re.compile(
    rb"^(?:from|import)[ \t]+(torch|torchvision|lightning|pytorch_lightning|cloudtrain\.trainer)\b", re.M
)
_TOOLS = "conda mamba micromamba pixi poetry pipenv pdm hatch docker podman apptainer singularity nix"
_OWN_PYTHON = re.compile(
    rf"\b(?:activate|module load|{'|'.join(_TOOLS.split())})\b"
    r"|\buvx?\s|\bpip3?\s+install\b|\bPATH=|[\w.~}/-]/python[\d.]*\b"
)


def wants_torch(run: str, work: Path) -> str | None:
    """What in ``run``, or in a script that it names, needs torch; None where nothing is seen to."""
    found = _COMMANDS.search(run)
    if found:
        return f"run uses {found[1]}"
    for name in _scripts(run):
        path = work / name
        try:
            with path.open("rb") as file:
                imported = _IMPORTS.search(file.read(_SCRIPT_BYTES))
        except (OSError, ValueError):
            continue
        if imported:
            return f"{name} imports {imported[1].decode()}"
    return None


def chooses_python(run: str) -> bool:
    """Whether ``run`` sets up or names a Python of its own, so that ours says nothing about it."""
    return _OWN_PYTHON.search(run) is not None


def _scripts(run: str) -> Iterator[str]:
    """The Python files that the command names, relative to the workdir: ``train.py``, and ``-m package.module``."""
    try:
        words = shlex.split(run, comments=True)
    except ValueError:  # a quote that only the shell understands
        words = run.split()
    for before, word in zip(["", *words], words, strict=False):
        if word.endswith(".py"):
            yield word
        elif before == "-m":
            module = word.replace(".", "/")
            yield from (f"{module}.py", f"{module}/__main__.py")
