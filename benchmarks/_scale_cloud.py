"""The embedded cloud in a process of its own, with hosts that only pretend: ``python benchmarks/_scale_cloud.py HOME``.

A thousand real SSH hosts don't fit on two processors. Everything else is the daemon's. Calls of the API are counted in
``calls.json``.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections import Counter
from pathlib import Path

from cloudtrain.provisioner.localcloud import daemon
from cloudtrain.provisioner.localcloud.client import LOCK_FILE
from cloudtrain.provisioner.localcloud.faults import Call, Fault, Faults
from cloudtrain.provisioner.localcloud.state import Options

_PORTS = itertools.count(1)
CALLS_FILE = "calls.json"


class Pretender:
    """A host that does nothing."""

    user = "ubuntu"
    console = ""

    def __init__(self) -> None:
        number = next(_PORTS)
        self.endpoint = (f"127.{1 + number // 60000}.0.1", 1 + number % 60000)

    def poweroff_requested(self) -> bool:
        return False

    def kill(self, *, grace_s: float) -> None:
        pass

    def step(self) -> int | None:
        return None

    def set_cut(self, cut: bool) -> None:
        pass


class Counting(Faults):
    """The faults, which every call passes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._guard = threading.Lock()

    def meet(self, call: Call) -> Fault | None:
        with self._guard:
            self.calls[call.action] += 1
        return super().meet(call)


def main() -> int:
    """Serve until told to stop."""
    home = Path(sys.argv[1])
    home.mkdir(parents=True, exist_ok=True)
    lock = daemon._lock(home / LOCK_FILE)
    assert lock is not None
    state = daemon._state(home, Options())
    state.faults = counting = Counting()
    server = daemon.Server(state, start=lambda _kind, _spec: Pretender())
    server.start()
    daemon._announce(state, server.port, home)
    while not state.stop.wait(0.1):
        whole = home / f".{CALLS_FILE}"
        whole.write_text(json.dumps(dict(counting.calls)))
        whole.replace(home / CALLS_FILE)
    lock.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
