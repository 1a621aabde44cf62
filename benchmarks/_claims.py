"""The form that every benchmark prints: claims with their bars, and the machine they were measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median


@dataclass(frozen=True)
class Claim:
    """A measured value and the most that it may be."""

    name: str
    value: float
    unit: str
    bar: float

    @property
    def holds(self) -> bool:
        """Whether the value is within the bar."""
        return self.value <= self.bar


def run_s(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """How long a command takes, in seconds of wall time. Raises CalledProcessError where it fails."""
    started = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def interleaved_ratio(measured: Callable[[], float], reference: Callable[[], float], rounds: int) -> float:
    """Median of ``measured`` over median of ``reference``, in turns, so that a noisy minute falls on both.

    One round is run first and thrown away: it fills file caches.
    """
    pairs = [(measured(), reference()) for _ in range(rounds + 1)][1:]
    return median(value for value, _ in pairs) / median(value for _, value in pairs)


def report(claims: Sequence[Claim], *, as_json: bool) -> int:
    """Print the claims, as a line each or (last, one line) as one object; returns 1 where one does not hold."""
    if as_json:
        machine = {"system": platform.system(), "cpu": platform.machine(), "cores": os.cpu_count()}
        machine["python"] = platform.python_version()
        rows = [{**asdict(claim), "value": round(claim.value, 3), "holds": claim.holds} for claim in claims]
        print(json.dumps({"claims": rows, "machine": machine}))
    else:
        for claim in claims:
            verdict = "holds" if claim.holds else "DOES NOT HOLD"
            print(f"{claim.name}: {claim.value:.2f} {claim.unit} (at most {claim.bar:g}): {verdict}")
    return 0 if all(claim.holds for claim in claims) else 1
