"""The guardian: a process that outlives the embedded cloud's daemon by a moment and ends all that its hosts ran.

The daemon holds the writing end of a pipe. When the daemon dies, by whatever death, the kernel closes that end, the
guardian reads end-of-file, sweeps and leaves. So a killed daemon leaves no trainer behind that nobody can find again.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from cloudtrain.provisioner.localcloud import processes
from cloudtrain.provisioner.localcloud.hosts import ENV_CLOUD


def spawn(cloud_id: str, *, log: Path | None) -> int:
    """Start the guardian of a cloud; returns a pipe's writing end, to be kept open while the cloud lives.

    Closing it makes the guardian sweep the cloud and leave. ``log`` is appended to with what it has to say; without
    one it is silent. Blocks a few milliseconds. Raises OSError where no process can be started.
    """
    reading, writing = os.pipe()
    command = [sys.executable, "-m", __name__, cloud_id]
    # Not the mark of a cloud that this daemon was itself started in: the guardian would fall to that one's sweep.
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDTRAIN_LOCAL_")}
    actions = [
        (os.POSIX_SPAWN_DUP2, reading, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(log or os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    ]
    try:
        # Not subprocess: nobody waits for this child, and its Popen would complain about that when collected.
        os.posix_spawn(sys.executable, command, env, file_actions=actions)
    except OSError:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return writing


def sweep(cloud_id: str) -> None:
    """SIGKILL every process that the cloud's hosts started, and all below them, until there is none. Idempotent."""
    processes.end(lambda: processes.marked(ENV_CLOUD, cloud_id), grace_s=0)


def main() -> None:
    """Wait for end-of-file on standard input, then sweep the cloud that the first argument names."""
    # The daemon's terminal, its Ctrl-C and a stop of its process group must not reach the one who cleans up after it.
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    sweep(sys.argv[1])


if __name__ == "__main__":
    main()
