"""``python -m benchmarks``: run every benchmark with ``--json`` and write RESULTS.md."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def measure(path: Path) -> dict[str, Any]:
    """What a benchmark prints last: ``{"claims": [...], "machine": {...}}``. Raises SystemExit where it prints none."""
    command = [sys.executable, str(path), "--json"]
    done = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False)
    try:
        result = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        sys.exit(f"benchmarks/{path.name} printed no result (exit {done.returncode}); run it alone to see why")
    assert isinstance(result, dict)
    return result


def main() -> int:
    """Returns 1 where a claim does not hold."""
    lines = [
        "# Benchmark results",
        "",
        f"Written by `make bench` on {datetime.now(UTC).date()}. Each value is a median of",
    ]
    lines += [
        "interleaved runs against a reference measured beside it.",
        "",
        "| benchmark | claim | value | bar | holds |",
    ]
    lines.append("|---|---|---|---|---|")
    machine: dict[str, Any] = {}
    all_hold = True
    for path in sorted(HERE.glob("[!_]*.py")):
        result = measure(path)
        machine = result["machine"]
        for claim in result["claims"]:
            all_hold = all_hold and claim["holds"]
            value = f"{claim['value']:g} {claim['unit']}"
            verdict = "yes" if claim["holds"] else "**no**"
            lines.append(f"| {path.stem} | {claim['name']} | {value} | {claim['bar']:g} | {verdict} |")
    lines += ["", "Machine: " + ", ".join(f"{key} {value}" for key, value in machine.items()) + ".", ""]
    (HERE / "RESULTS.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
