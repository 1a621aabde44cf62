"""F46: the controller's lock is the kernel's: it dies with its holder, and two never have it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from cloudtrain.provisioner.controller.process import try_lock
from cloudtrain.provisioner.home import Home

HOLD = """
import sys
from pathlib import Path
from cloudtrain.provisioner.controller.process import try_lock
from cloudtrain.provisioner.home import Home
print(try_lock(Home(Path(sys.argv[1]), Path(sys.argv[1]) / "local")) is not None, flush=True)
sys.stdin.read()
"""


def test_a_lock_whose_holder_was_killed_is_free_at_once_and_until_then_nobody_elses(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "local")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "True\n"
        assert try_lock(home) is None
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        lock = try_lock(home)
        assert lock is not None, "no file that a dead process left keeps anybody out"
        os.close(lock)
    finally:
        holder.kill()
        holder.communicate()
