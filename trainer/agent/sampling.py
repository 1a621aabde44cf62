"""How busy the machine is: CPU and memory from /proc, GPUs from nvidia-smi where there is one."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path

from ..contract import Utilisation

EVERY_S = 2.0
_SMI_TIMEOUT_S = 5.0
_QUERY = "--query-gpu=utilization.gpu,memory.used,memory.total"


def cpu_times(text: str) -> tuple[int, int]:
    """(busy, all) in ticks since boot, of the first line of /proc/stat (proc(5): idle and iowait are not busy)."""
    ticks = [int(word) for word in text.split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def memory_percent(text: str) -> float:
    """Of /proc/meminfo: what is not available to new programs."""
    values = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines() if line}
    return 100.0 * (1 - values["MemAvailable"] / values["MemTotal"])


def gpu_percents(text: str) -> tuple[float | None, float | None, int]:
    """Mean utilisation, memory in use over all GPUs, and their number, of nvidia-smi's csv without header and units."""
    busy: list[float] = []
    used = total = 0.0
    count = 0
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 3:
            continue
        count += 1
        if _number(fields[0]):
            busy.append(float(fields[0]))  # "[N/A]" under MIG
        if _number(fields[1]) and _number(fields[2]):
            used, total = used + float(fields[1]), total + float(fields[2])
    return (sum(busy) / len(busy) if busy else None), (100.0 * used / total if total else None), count


def _number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


class Sampler:
    """Owns the sampling thread; ``latest`` is the newest sample."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._smi = shutil.which("nvidia-smi")
        self._before: tuple[int, int] | None = None
        self.latest = Utilisation()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="sampling", daemon=True).start()

    def sample(self) -> Utilisation:
        """Measure now; CPU is over the time since the last sample. What can't be read is None."""
        cpu = memory = None
        try:
            now = cpu_times((self._proc / "stat").read_text(encoding="ascii"))
            if self._before is not None and now[1] > self._before[1]:
                cpu = 100.0 * (now[0] - self._before[0]) / (now[1] - self._before[1])
            self._before = now
            memory = memory_percent((self._proc / "meminfo").read_text(encoding="ascii"))
        except (OSError, ValueError, KeyError, IndexError, ZeroDivisionError):
            pass
        gpu, gpu_memory, count = self._gpus()
        self.latest = Utilisation(cpu, memory, gpu, gpu_memory, count)
        return self.latest

    def _gpus(self) -> tuple[float | None, float | None, int]:
        if self._smi is None:
            return None, None, 0
        try:
            command = [self._smi, _QUERY, "--format=csv,noheader,nounits"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True)  # noqa: S603 - fixed words
        except (OSError, subprocess.SubprocessError):
            return None, None, 0
        return gpu_percents(done.stdout)

    def _run(self) -> None:
        while True:
            self.sample()
            time.sleep(EVERY_S)
