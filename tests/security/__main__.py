"""``make security``: other people's judgement of the policies, the template, the code and the scripts.

``python -m tests.security``. A finding above "low" fails unless ``explained.toml`` says why it is accepted; so does an
explanation that explains nothing any more.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

from tests.security import code, policies
from tests.security.tools import ROOT, TOOLS

EXPLAINED = Path(__file__).with_name("explained.toml")


def main() -> int:
    """Run every tool; 0 where each finding is explained and each explanation needed."""
    explained: dict[str, str] = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        found = sorted({*policies.findings(Path(folder)), *code.findings(Path(folder))})
    open_ones = [finding for finding in found if finding[0] not in explained]
    stale = set(explained) - {name for name, _ in found}
    for name, severity in found:
        print(f"{'explained' if name in explained else 'OPEN':<9} {severity.lower():<8} {name}")
    for name in sorted(stale):
        print(f"UNUSED    explanation {name}: take it out of {EXPLAINED.relative_to(ROOT)}")
    counts = Counter(name.partition(":")[0] for name, _ in found)
    opened = Counter(name.partition(":")[0] for name, _ in open_ones)
    for tool in sorted(TOOLS):
        print(f"{tool:<14} {counts[tool]:>3} findings, {opened[tool]} open")
    print(f"{len(found)} findings, {len(open_ones)} of them open, {len(stale)} unused explanations")
    return 1 if open_ones or stale else 0


if __name__ == "__main__":
    sys.exit(main())
