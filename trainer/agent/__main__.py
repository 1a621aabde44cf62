"""``python -m cloudtrain.trainer.agent ROOT``: the agent. Started by ``bootstrap``, once; ROOT is ``~/cloudtrain``."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..contract import FINAL_PHASES, AgentConfig, config_from_json, status_from_json
from .checks import Checks
from .host import Host, make_host
from .jobenv import count_gpus, job_environment
from .places import Places
from .process import Job, start

if TYPE_CHECKING:
    from .notices import Watcher
    from .objects import Objects
    from .supervisor import Supervisor

logger = logging.getLogger("cloudtrain.agent")

_LOCK_WAIT_S = 2.0  # a bootstrap looks at the lock for an instant


def main(root: Path) -> int:
    """Supervise one attempt; returns the exit code: 0 also for one that failed, which has been reported."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    places = Places(root)
    config = config_from_json(places.config.read_bytes())
    lock = _take_lock(places, config.generation)
    if lock is None:
        logger.warning("another agent lives here; this one leaves")
        return 0
    if _is_over(places, config):
        logger.warning("generation %d is over; this agent leaves", config.generation)
        return 0
    host = make_host(config.host, os.environ)
    supervisor = _supervisor(config, places, host)

    def going_down(_number: int, _frame: object) -> None:
        supervisor.going_down = True

    signal.signal(signal.SIGTERM, going_down)
    try:
        off = supervisor.run()
    except Exception as error:
        logger.exception("the agent failed")
        supervisor.abandon(error)
        off = True
    if off:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the shutdown that we ask for must not wait for us
        host.poweroff()
    return 0


def _supervisor(config: AgentConfig, places: Places, host: Host) -> Supervisor:
    """Everything an attempt needs, and its `run` started where nothing must come before that."""
    places.create()
    restarted, ran_s = _been_here(places, config)
    for path in (places.progress, places.notice):
        path.unlink(missing_ok=True)
    secrets = _secrets(places)
    gpus = count_gpus()
    job_env = job_environment(config, places, os.environ, gpus, secrets)
    checks = Checks(config, places, job_environment(config, places, os.environ, gpus), real=host.real)
    checks.look()
    running = None if restarted else _start_at_once(config, places, job_env, checks)

    from .supervisor import Supervisor  # noqa: PLC0415 - all that it needs loads while the job starts

    mounter = None
    if config.mounts:
        from .mounts import Mounter  # noqa: PLC0415 - as above

        mounter = Mounter(config, places, host, job_env, _connect)
    return Supervisor(
        config,
        places,
        host,
        job_env=job_env,
        checks=checks,
        hide=tuple(secrets.values()),
        connect=lambda: _connect(config.bucket, config.region),
        watch=lambda: _watch(host),
        mounter=mounter,
        running=running,
        restarted=restarted,
        ran_s=ran_s,
    )


def _start_at_once(config: AgentConfig, places: Places, job_env: dict[str, str], checks: Checks) -> Job | None:
    """``run``, where nothing must come before it: no data, no setup, no checkpoint. People wait.

    None where something must, and where it can't be started: the supervisor tries again, and reports.
    """
    if config.generation > 1 or config.setup is not None or config.mounts or not checks.ready():
        return None
    try:
        return start(config, places, job_env, "run", config.run)
    except (OSError, KeyError):
        return None


def _secrets(places: Places) -> dict[str, str]:
    """The values of the job's secrets, whose file is from now on the agent's alone."""
    if not places.secrets.exists():
        return {}
    places.secrets.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(places.secrets, 0, 0)
    values: dict[str, str] = json.loads(places.secrets.read_bytes())
    return values


def _take_lock(places: Places, generation: int) -> IO[str] | None:
    """The lock of the one agent on this machine, held while the file is open; None where another holds it."""
    places.run.mkdir(parents=True, exist_ok=True)
    lock = places.lock.open("a+", encoding="utf-8")
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                lock.close()
                return None
            time.sleep(0.01)
    lock.truncate(0)
    lock.write(f"{generation}\n")
    lock.flush()
    return lock


def _is_over(places: Places, config: AgentConfig) -> bool:
    try:
        status = status_from_json(places.status.read_bytes())
    except (OSError, ValueError, TypeError):
        return False
    return status.generation == config.generation and status.phase in FINAL_PHASES


def _been_here(places: Places, config: AgentConfig) -> tuple[bool, float]:
    """Whether an agent of this attempt was started here before, and how many seconds ago the first was."""
    marker = places.run / "started"
    word = f"{config.job_id} {config.generation}"
    try:
        before, _, started_at = marker.read_text(encoding="utf-8").rpartition(" ")
        if before == word:
            return True, max(0.0, time.time() - float(started_at))
    except (OSError, ValueError):
        pass
    marker.write_text(f"{word} {time.time()}", encoding="utf-8")
    return False, 0.0


def _connect(bucket: str, region: str) -> Objects:
    from ..storage import connect  # noqa: PLC0415 - boto3 is slow to load, and the job's start does not need it

    return connect(bucket, region)


def _watch(host: Host) -> Watcher | None:
    """The metadata service's watcher, started; None on a local host that was told of no such service."""
    from .notices import DEFAULT_ENDPOINT, ENV_ENDPOINT, Imds, Watcher  # noqa: PLC0415 - http.client is slow to load

    endpoint = os.environ.get(ENV_ENDPOINT)
    if endpoint is None and not host.real:
        return None
    watcher = Watcher(Imds(endpoint or DEFAULT_ENDPOINT), host.notice_poll_s)
    watcher.start()
    return watcher


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
