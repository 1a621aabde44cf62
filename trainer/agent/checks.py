"""The machine check: is this the machine that was paid for, and can its image run this job? Before ``run``.

The machine itself is looked at first. The job's Python comes after ``setup``, which may install what is missing: in the
agent's own process where that is the same Python, else in a child, on a real machine with a product on each GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..contract import AgentConfig
from .jobcode import chooses_python, wants_torch
from .jobenv import count_gpus, venv_of
from .places import Places
from .process import as_user, shell

_TIMEOUT_S = 180.0  # the first CUDA context on a machine with 8 GPUs, its libraries read from a cold volume
_GIB = 1 << 30
_LEAST_FREE = 1 << 30  # bytes, on a real machine: logs, outputs and checkpoints go there
CLOCK_S = 900.0
"""S3 and EC2 refuse requests whose time is more than 15 minutes off (S3 error codes, RequestTimeTooSkewed, 2026-11)."""

# In a child, with the job's own Python, of whatever age: the agent never imports torch. A driver that is too old, a GPU
# that fell off the bus and a CPU build of torch all show here.
_PROBE = """
import json, sys
gpus = int(sys.argv[1])
said = {"version": list(sys.version_info[:2]), "executable": sys.executable, "torch": None}
def tell(**more):
    said.update(more)
    print(json.dumps(said))
    sys.exit(0)
try:
    from importlib.util import find_spec
    there = find_spec("torch") is not None
except ImportError:
    there = False
if not there or not gpus:
    tell(torch="there" if there else None)
try:
    import torch
except Exception as error:
    tell(torch="there", image="torch does not load (%s)" % " ".join(str(error).split())[:200])
said["torch"] = torch.__version__
if torch.version.cuda is None:
    tell(image="torch %s is a build for CPUs" % torch.__version__)
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
if count < gpus:
    tell(machine="torch %s sees %d GPUs, not %d" % (torch.__version__, count, gpus))
for number in range(count):
    a = torch.ones(256, 256, device="cuda:%d" % number)
    if (a @ a).sum().item() != 256.0 ** 3:
        tell(machine="GPU %d computes a wrong product" % number)
tell(products=count)
"""

_OTHER_IMAGE = "or choose an image that has it: without resources.aws.image_id the reviewed one is taken"


class Checks:
    """``lines`` grows, one for each check; ``failure`` is one line once a check failed, ``fault`` whose it is: the
    "machine"'s, or the "image"'s and so that of every machine like it."""

    def __init__(
        self,
        config: AgentConfig,
        places: Places,
        env: Mapping[str, str],
        *,
        real: bool,
        gpus: Callable[[], int] = count_gpus,
    ) -> None:
        self._config = config
        self._places = places
        self._env = env
        self._real = real
        self._gpus = gpus
        self._asked = False
        self._passed = False
        self.lines: tuple[str, ...] = ()
        self.failure: str | None = None
        self.fault = "machine"

    # ---- the machine, at once

    def look(self) -> None:
        """Disk, clock, scratch disk, and the GPUs by their device files. Takes milliseconds."""
        free = shutil.disk_usage(self._places.root).free
        self.lines = (f"disk: {free / _GIB:.1f} GiB free",)
        if self._real:
            self._look_at_machine(free)
        elif self._config.expect_accelerator:
            self.lines += (f"gpu: skipped, a local host stands in for {self._config.expect_accelerator}",)

    def _look_at_machine(self, free: int) -> None:
        config = self._config
        if free < _LEAST_FREE:
            self._fail(f"{free / _GIB:.1f} GiB of disk are free, which no job gets far with: raise resources.disk_size")
            self.fault = "image"  # the same disk comes with every machine of this job
        if config.sent_at:
            off_s = abs(time.time() - config.sent_at)
            self.lines += (f"clock: {off_s:.0f} s from the launching computer's",)
            if off_s > CLOCK_S:
                self._fail(f"the machine's clock is {off_s / 60:.0f} minutes off, and S3 would refuse its requests")
        if config.scratch is not None:
            self.lines += (_scratch_line(config.scratch),)
        if config.expect_gpus:
            found = self._gpus()
            self.lines += (f"gpu: {found} present",)
            if found < config.expect_gpus:
                self._fail(f"{found} GPUs, not the {config.expect_gpus} of {config.expect_accelerator}")

    # ---- the job's Python, before run

    def ready(self) -> bool:
        """Whether ``run`` may start. The first call asks; where a child must be asked, a later one knows."""
        if self.failure is not None:
            return False
        if not self._asked:
            self._asked = True
            if self._known_at_once():
                self._passed = True
            else:
                threading.Thread(target=self._ask, name="checks", daemon=True).start()
        return self._passed

    def _known_at_once(self) -> bool:
        """Whether the agent's own Python is the job's and has torch. Costs a look at the import path, no process."""
        if self._real and self._config.expect_gpus:
            return False
        venv = venv_of(self._config, self._env)
        path = f"{venv / 'bin'}{os.pathsep}" if venv is not None else ""
        path += self._env.get("PATH", os.defpath)
        python = shutil.which("python", path=path) or shutil.which("python3", path=path)
        if python is None or Path(python).parent != Path(sys.executable).parent:
            return False
        there = importlib.util.find_spec("torch") is not None
        if not there and wants_torch(self._config.run, self._places.work) is not None:
            return False
        with_torch = "with torch" if there else "without torch"
        self.lines += (f"python: {sys.version_info[0]}.{sys.version_info[1]}, {with_torch}",)
        return True

    def _ask(self) -> None:
        """In the thread."""
        gpus = self._config.expect_gpus if self._real else 0
        try:
            said = self._probe(gpus)
        except subprocess.TimeoutExpired:
            self._fail(f"the job's Python did not answer within {_TIMEOUT_S:.0f} s")
        except (OSError, KeyError, ValueError) as error:
            self._fail(f"the job's Python could not be asked: {error}")
        else:
            self._judge(said, gpus)
        self._passed = self.failure is None

    def _probe(self, gpus: int) -> dict[str, Any]:
        """What the job's Python says of itself; {} where there is none. Raises ValueError with its last words."""
        venv = venv_of(self._config, self._env)
        lines = [f". {shlex.quote(str(venv / 'bin' / 'activate'))}"] if venv is not None else []
        lines.append("python=$(command -v python || command -v python3) || exit 0")
        lines.append(f'exec "$python" -c "$CLOUDTRAIN_PROBE" {gpus}')
        done = subprocess.run(  # noqa: S603 - our own probe
            [shell(), "-c", "\n".join(lines)],
            env={**self._env, "CLOUDTRAIN_PROBE": _PROBE},
            cwd=self._places.work,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            **as_user(self._config.login_user if self._real else None),
        )
        if done.returncode != 0:
            words = done.stderr.strip().splitlines()
            raise ValueError(words[-1] if words else f"exit code {done.returncode}")
        answer = done.stdout.strip().splitlines()
        return dict(json.loads(answer[-1])) if answer else {}

    def _judge(self, said: dict[str, Any], gpus: int) -> None:
        why = wants_torch(self._config.run, self._places.work)
        if why is not None and chooses_python(self._config.run):
            self.lines += ("python: run brings its own, which is not checked",)
            why = None
        version = ".".join(str(part) for part in said.get("version", ()))
        python = f"the job's Python {version} ({said.get('executable')})" if version else "the image"
        if why is not None and not version:
            self._unfit(f"the image has no Python, and {why}: install one in `setup`, {_OTHER_IMAGE}")
        elif why is not None and said["version"] < [3, 10] and "cloudtrain.trainer" in why:
            self._unfit(f"{python} is too old, and {why}, which needs 3.10 or later: {_OTHER_IMAGE[3:]}")
        elif why is not None and said["torch"] is None:
            self._unfit(f"{python} has no torch, and {why}: install it in `setup`, {_OTHER_IMAGE}")
        elif "image" in said:
            self._unfit(f"{said['image']}: install one for CUDA in `setup`, or leave torch to the image")
        elif "machine" in said:
            self._fail(said["machine"])
        elif version:
            self.lines += (_python_line(version, said, gpus),)

    def _fail(self, words: str) -> None:
        if self.failure is None:
            self.failure = f"machine check: {words}"

    def _unfit(self, words: str) -> None:
        self.fault = "image"
        self._fail(words)


def _python_line(version: str, said: dict[str, Any], gpus: int) -> str:
    if said["torch"] is None:
        return f"python: {version}, without torch" + ("; GPUs are checked by their driver alone" if gpus else "")
    if gpus:
        return f"python: {version}, torch {said['torch']}, a product on each of {said['products']} GPUs is right"
    return f"python: {version}, with torch"


def _scratch_line(scratch: str) -> str:
    if not os.path.ismount(scratch):
        return f"scratch: {scratch} is not mounted; data goes to the root disk"
    return f"scratch: {scratch}, {shutil.disk_usage(scratch).free / _GIB:.0f} GiB free"
