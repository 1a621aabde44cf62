"""bandit on our Python, shellcheck on every shell script that we keep or make, detect-secrets on every file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.security.scripts import scripts
from tests.security.tools import ROOT, Finding, loads, run

SHIPPED = ("pricing", "provisioner", "trainer", "templates", "setup.py")


def findings(folder: Path) -> Iterator[Finding]:
    """Everything of all three; the scripts are written into ``folder``."""
    yield from bandit()
    yield from shellcheck(folder)
    yield from detect_secrets()


def bandit() -> Iterator[Finding]:
    """Findings of medium severity and above in what is shipped."""
    for found in loads(run("bandit", "-q", "-r", "-ll", "-f", "json", *SHIPPED))["results"]:
        yield f"bandit:{found['test_id']}:{found['filename'].removeprefix('./')}", found["issue_severity"]


def shellcheck(folder: Path) -> Iterator[Finding]:
    """Every finding, down to matters of style."""
    for name, text in scripts().items():
        path = folder / f"{name.replace('/', '_')}.sh"
        path.write_text(text, encoding="utf-8")
        shell = "bash" if "bash" in text.split("\n", 1)[0] else "sh"
        for found in loads(run("shellcheck", "--norc", f"--shell={shell}", "--format=json1", path))["comments"]:
            yield f"shellcheck:SC{found['code']}:{name}", found["level"]


def detect_secrets() -> Iterator[Finding]:
    """Every candidate in the files that git knows; nothing is tried out anywhere."""
    found = loads(run("detect-secrets", "scan", "--no-verify", str(ROOT)))["results"]
    for path, candidates in found.items():
        for candidate in candidates:
            name = Path(path)
            where = name.relative_to(ROOT) if name.is_absolute() else name
            yield f"detect-secrets:{candidate['type']}:{where}", "unrated"
