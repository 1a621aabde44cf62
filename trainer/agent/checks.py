"""The machine check: is this the machine that was paid for? Beside the start of the job, never before it."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from ..contract import AgentConfig
from .jobenv import count_gpus
from .process import shell

_TIMEOUT_S = 180.0  # the first CUDA context on a machine with 8 GPUs, its libraries read from a cold volume
_GIB = 1 << 30

# In a child, with the job's own Python: the agent never imports torch. A driver that is too old, a GPU that fell off
# the bus and a CPU build of torch all show here.
_PROBE = """
import sys
try:
    import torch
except ImportError:
    print("torch: not installed in the job's Python; GPUs are checked by their driver alone")
    sys.exit(0)
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
if count < int(sys.argv[1]):
    sys.exit(f"torch {torch.__version__} sees {count} GPUs, not {sys.argv[1]}")
for number in range(count):
    a = torch.ones(256, 256, device=f"cuda:{number}")
    if (a @ a).sum().item() != 256.0 ** 3:
        sys.exit(f"GPU {number} computes a wrong product")
print(f"torch: {torch.__version__}, a product on each of {count} GPUs is right")
"""


class Checks:
    """Owns the thread. ``lines`` grows; ``failure`` is one line once a check failed."""

    def __init__(
        self,
        config: AgentConfig,
        root: Path,
        env: Mapping[str, str],
        *,
        real: bool,
        gpus: Callable[[], int] = count_gpus,
    ) -> None:
        self._config = config
        self._root = root
        self._env = env
        self._real = real
        self._gpus = gpus
        self.lines: tuple[str, ...] = ()
        self.failure: str | None = None

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self.run, name="checks", daemon=True).start()

    def run(self) -> None:
        """Check everything once."""
        free = shutil.disk_usage(self._root).free / _GIB
        self.lines = (f"disk: {free:.1f} GiB free",)
        wanted = self._config.expect_accelerator
        if not self._real:
            if wanted:
                self.lines += (f"gpu: skipped, a local host stands in for {wanted}",)
        elif self._config.expect_gpus:
            self._check_gpus(self._config.expect_gpus)

    def _check_gpus(self, expected: int) -> None:
        found = self._gpus()
        if found < expected:
            self.failure = f"machine check: {found} GPUs, not the {expected} of {self._config.expect_accelerator}"
            return
        self.lines += (f"gpu: {found} present",)
        python = f'exec python3 -c "$CLOUDTRAIN_PROBE" {expected}'
        script = "\n".join(filter(None, [self._config.activate, python]))
        env = {**self._env, "CLOUDTRAIN_PROBE": _PROBE}
        try:
            done = subprocess.run(  # noqa: S603 - our own probe
                [shell(), "-c", script], env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            self.failure = f"machine check: the GPUs did not answer within {_TIMEOUT_S:.0f} s"
            return
        words = ((done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or [""])[-1]
        if done.returncode == 0:
            self.lines += (words,)
        else:
            self.failure = f"machine check: {words or f'the GPU probe exited with {done.returncode}'}"
