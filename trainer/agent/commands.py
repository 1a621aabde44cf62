"""The user's commands, ``setup`` and ``run``: started, watched until their last process is gone, told to stop."""

from __future__ import annotations

import logging
import os
import shutil
import time

from ..contract import ENV_RESUME, AgentConfig, Progress
from .decide_stop import Signal, next_signal, settled
from .host import Host
from .places import Places
from .process import Job, start
from .restore import Restored
from .state import State

logger = logging.getLogger(__name__)

LINGER_S = 10.0  # for what is left of a job that is done or has failed
UNKILLABLE_S = 10.0  # after SIGKILL; then the rest is the kernel's


class Commands:
    """Changes ``state`` alone; what an end means is the supervisor's to say."""

    def __init__(self, config: AgentConfig, places: Places, host: Host, job_env: dict[str, str], state: State) -> None:
        self._config = config
        self._places = places
        self._host = host
        self._job_env = job_env
        self._state = state

    def start_setup(self, command: str) -> None:
        """Raises OSError, KeyError (no such user)."""
        state = self._state
        state.current = start(self._config, self._places, self._job_env, "setup", command)
        state.in_setup, state.phase = True, "setup"
        logger.info("setup started, pid %d", state.current.pid)

    def start_run(self, restored: Restored | None) -> None:
        """From the checkpoint, where there is one. Raises OSError, KeyError (no such user)."""
        if restored is not None and restored.path is not None:
            self._job_env[ENV_RESUME] = str(restored.path)
            self._give_to_user()
            self._state.resumed_step = restored.step
            self._state.progress = Progress(step=restored.step or 0, start_step=restored.step or 0)
        self.note_run(start(self._config, self._places, self._job_env, "run", self._config.run))

    def note_run(self, job: Job) -> None:
        """``run`` has been started."""
        state = self._state
        state.current, state.in_setup, state.phase = job, False, "running"
        state.shell_ended = None
        state.run_started = time.monotonic()
        logger.info("run started, pid %d", job.pid)

    def _give_to_user(self) -> None:
        """What root restored belongs to the job's user, who must be able to prune it."""
        user = self._config.login_user
        if self._host.real and user is not None and os.geteuid() == 0:
            for path in (self._places.checkpoints, *self._places.checkpoints.rglob("*")):
                shutil.chown(path, user)

    def ended(self) -> bool:
        """Look at the one that runs, and pass a stop on to it; whether it has come to an end that may be judged."""
        state = self._state
        job = state.current
        if job is None:
            return False
        code = job.exit_code()
        if code is not None and state.shell_ended is None:
            state.shell_ended = time.monotonic()
        if self._still_lives(job, code):
            self._apply_stop(job)
            return False
        ended_for_s = time.monotonic() - (state.shell_ended or 0.0)
        return settled(code, asked=state.stop is not None, ended_for_s=ended_for_s)

    def _still_lives(self, job: Job, code: int | None) -> bool:
        state = self._state
        if not job.alive():
            return False
        if state.killed is not None and time.monotonic() - state.killed > UNKILLABLE_S:
            logger.warning("processes of the job do not die: %s", job.members())
            return False
        judged = state.progress.done or (code is not None and code != 0)
        ended_for_s = 0.0 if state.shell_ended is None else time.monotonic() - state.shell_ended
        if judged and ended_for_s > LINGER_S:
            self._kill(job)
        elif ended_for_s > LINGER_S:  # a shell that put its training in the background looks just so
            names = ", ".join(sorted({process.name for process in job.members()}))
            state.lingering = (f"run: its shell has ended, {names} lives on, and the job with it",)
        return True

    def end_idle(self) -> None:
        """End what a shell has left behind, once it does nothing any more: the shell's exit code is the job's."""
        if self._state.current is not None:
            self._kill(self._state.current, "what its shell has left behind does nothing any more")

    def _apply_stop(self, job: Job) -> None:
        state = self._state
        if state.stop is None:
            return
        action = next_signal(state.stop, time.time(), stops_by_file=state.progress.stops_by_file)
        if action is Signal.KILL:
            self._kill(job)
        elif action is Signal.TERMINATE and (told := job.terminate(state.told)):
            logger.info("SIGTERM to %s", told)
            state.told.update(told)

    def _kill(self, job: Job, why: str = "its time is over") -> None:
        if self._state.killed is None:
            self._state.killed = time.monotonic()
            logger.warning("SIGKILL to the job: %s", why)
        job.kill()
