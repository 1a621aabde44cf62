"""What ``bootstrap`` does: make the folders, unpack the workdir, start the agent once."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..contract import FINAL_PHASES, AgentConfig, config_from_json, status_from_json
from .host import Host, HostError, make_host
from .places import Places
from .unpack import UnpackError, read_manifest, unpack

START_WAIT_S = 20.0  # for the agent's first sign of life
_MIB = 1 << 20


class ArriveError(Exception):
    """Nothing was started. One line."""


def main(root: Path) -> int:
    """Print the one JSON line; returns the exit code."""
    places = Places(root)
    try:
        answer = {"ok": True, "agent": arrive(places)}
    except (ArriveError, UnpackError, HostError) as error:
        answer = {"ok": False, "error": str(error)}
    except OSError as error:
        answer = {"ok": False, "error": _explain(error, places)}
    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
    sys.stdout.flush()
    return 0 if answer["ok"] else 1


def arrive(places: Places, host: Host | None = None, *, wait_s: float = START_WAIT_S) -> str:
    """Unpack and start unless that was done: "started", "running" or "finished".

    Raises ArriveError, UnpackError, HostError, OSError (a full disk).
    """
    try:
        config = config_from_json(places.config.read_bytes())
        host = host or make_host(config.host, os.environ)
    except (ValueError, TypeError) as error:
        raise ArriveError(f"incoming/agent.json can't be read: {error}") from None
    except FileNotFoundError:
        raise ArriveError("incoming/agent.json is not there: nothing arrived") from None
    places.run.mkdir(exist_ok=True)
    with _only_one(places):
        state = _agent_state(places, config)
        if state is not None:
            return state
        _unpack_workdir(places)
        places.create()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(places.agent), str(places.deps)])}
        argv = [sys.executable, "-m", "cloudtrain.trainer.agent", str(places.root)]
        started_at = time.time()
        host.start_agent(argv, env, places.agent, places.agent_log)
        _await_agent(places, config, started_at, wait_s)
    return "started"


@contextmanager
def _only_one(places: Places) -> Iterator[None]:
    """One bootstrap at a time: a second one waits, and then finds the agent running."""
    with (places.run / "bootstrap.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _agent_state(places: Places, config: AgentConfig) -> str | None:
    """ "running" or "finished" for an agent of this generation; None where there is none.

    Raises ArriveError for one of another generation: a machine is of one attempt.
    """
    holder = lock_holder(places)
    if holder is not None:
        if holder not in (0, config.generation):
            raise ArriveError(f"an agent of generation {holder} runs here, not of {config.generation}")
        return "running"
    try:
        status = status_from_json(places.status.read_bytes())
    except (OSError, ValueError, TypeError):
        return None
    return "finished" if status.generation == config.generation and status.phase in FINAL_PHASES else None


def lock_holder(places: Places) -> int | None:
    """The generation of the agent that lives here; None where none does; 0 for one that is just starting."""
    try:
        with places.lock.open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                text = lock.read().strip()
                return int(text) if text.isdigit() else 0
    except FileNotFoundError:
        pass
    return None


def _unpack_workdir(places: Places) -> None:
    """``work/`` as the snapshot has it; nothing to do for a job without one, or where it was done before."""
    if not places.snapshot.exists():
        return
    manifest = read_manifest(places.manifest)
    marker = places.run / "unpacked"
    if marker.exists() and marker.read_text(encoding="utf-8") == manifest.sha256 and places.work.is_dir():
        return  # an agent may have worked in it since
    free = shutil.disk_usage(places.root).free
    if free < manifest.total_bytes:
        raise OSError(errno.ENOSPC, f"the workdir takes {manifest.total_bytes // _MIB} MiB")
    unpack(places.snapshot, manifest, places.work)
    marker.write_text(manifest.sha256, encoding="utf-8")
    places.snapshot.unlink()  # its room is better used otherwise


def _await_agent(places: Places, config: AgentConfig, started_at: float, wait_s: float) -> None:
    """Return at the agent's first sign of life. Raises ArriveError with its last words where there is none."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if lock_holder(places) is not None:
            return
        if places.status.exists() and places.status.stat().st_mtime >= started_at - 1:
            return  # lived and ended
        time.sleep(0.005)
    words = ""
    if places.agent_log.exists():
        words = (places.agent_log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""])[-1]
    raise ArriveError(f"the agent of generation {config.generation} did not start: {words or 'no word from it'}")


def _explain(error: OSError, places: Places) -> str:
    if error.errno == errno.ENOSPC:
        free = shutil.disk_usage(places.root).free // _MIB
        return f"the machine's disk is full ({free} MiB free): {error.strerror}; raise resources.disk_size"
    return f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
