"""The agent's loop: prepare, run the user's command, stop it by the protocol, bring everything home, power off.

Nothing in the loop waits: the bucket (``courier``), the metadata service (``notices``), the utilisation (``sampling``)
and the check of the job's Python (``checks``) have threads of their own, whose attributes it reads ten times a second.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from ..contract import AgentConfig, AgentStatus, progress_from_json
from .checks import Checks
from .commands import Commands
from .courier import DISK_FULL, Courier, Ending
from .decide_stop import Verdict, exited, job_deadline, said, verdict
from .headway import TAKEN_LATE_S, Activity, Headway, Seen
from .host import Host
from .objects import Objects
from .places import Places
from .process import Job, kill_leftovers
from .report import Reporter, last_line, says_disk_full
from .sampling import Sampler
from .state import AgentCrash, Barred, State, Stuck
from .stops import Stops

if TYPE_CHECKING:
    from .mounts import Mounter
    from .notices import Watcher

logger = logging.getLogger(__name__)

TICK_S = 0.1
WARM_AFTER_S = 10.0  # a job that reports no step is taken to be past its start
BARRED_S = 600.0  # new rights take minutes to be in force; a bucket that refuses everything for longer is not ours
CLOUD_DEAD_S = 15.0  # a local host whose metadata service is gone this long has no cloud any more
_LITTLE_ROOM_BYTES = 1 << 20


class Supervisor:
    """One attempt on one machine. ``job_env``: for setup and run. ``watch``: starts the watcher of notices."""

    def __init__(
        self,
        config: AgentConfig,
        places: Places,
        host: Host,
        *,
        job_env: Mapping[str, str],
        checks: Checks,
        hide: Collection[str] = (),
        connect: Callable[[], Objects],
        watch: Callable[[], Watcher | None],
        mounter: Mounter | None = None,
        running: Job | None = None,
        restarted: bool = False,
        ran_s: float = 0.0,
    ) -> None:
        """``hide``: texts that our own words must not hold. ``mounter``: where there is data to bring first.
        ``running``: ``run``, where it was started already. ``restarted``: an agent of this attempt was here before;
        the first one started ``ran_s`` ago."""
        self._config = config
        self._places = places
        self._host = host
        self._watch = watch
        self._mounter = mounter
        self._begun = time.monotonic()
        self._restarted = restarted
        self._job_env = dict(job_env)
        self._state = State(started=time.monotonic() - ran_s)
        self._commands = Commands(config, places, host, self._job_env, self._state)
        self._stops = Stops(config, places, self._state)
        if running is not None:
            self._commands.note_run(running)
        self._courier = Courier(config, places, connect)
        self._checks = checks
        self._hide = hide
        self._sampler = Sampler()
        self._reporter = Reporter(places)
        self._watcher: Watcher | None = None
        self._progress_seen: tuple[int, int] | None = None
        self._headway = Headway(host.work_file, places.progress, time.monotonic())
        self._activity = Activity(places.job_log, self._cpu_s)
        self.going_down = False  # set by a signal handler

    def run(self) -> bool:
        """Supervise to the end; returns whether the machine is to be powered off then. Where EC2 takes it, go on until
        it does, or is five minutes late. Raises AgentCrash, Barred, Stuck, OSError: the caller reports it, with
        ``abandon``.
        """
        self._begin()
        while not self._over():
            self._tick()
            time.sleep(TICK_S)
        logger.info("the attempt is over: %s", self._state.phase)
        return self._state.final and (self._state.taken_at is None or self._taken_late())

    def abandon(self, error: Exception) -> None:
        """Report a failure of the agent itself. What was published stays; the job is ended, nobody watches it."""
        state = self._state
        if state.current is not None:
            state.current.end()
        text = f"the agent failed: {' '.join(f'{type(error).__name__}: {error}'.split())}; see run/agent.log there"
        ending = Verdict("failed", text, "machine")
        if isinstance(error, Barred):
            ending = Verdict("failed", str(error), "denied")
        elif isinstance(error, Stuck):
            ending = Verdict("failed", str(error), "machine")
        state.verdict, state.phase = ending, "failed"
        self._reporter.report(self.status(), now=True)

    def status(self) -> AgentStatus:
        """What is known now."""
        state, courier = self._state, self._courier
        watcher_lines = self._watcher.lines() if self._watcher is not None else ()
        restored = courier.restored.rejected if courier.restored is not None else ()
        lost = (f"outputs: {len(courier.left_out)} left out, {courier.left_out[0]} first",) if courier.left_out else ()
        return AgentStatus(
            generation=self._config.generation,
            phase=state.phase,
            heartbeat_at=time.time(),
            progress=state.progress,
            utilisation=self._sampler.latest,
            durable_step=courier.durable_step,
            resumed_step=state.resumed_step,
            notice_deadline_at=state.taken_at,
            run_seconds=self._run_seconds(),
            exit_code=state.exit_code,
            error=self._error(),
            failure=state.verdict.failure if state.verdict is not None else None,
            checks=(*self._checks.lines, *watcher_lines, *state.lingering, *lost),
            rejected=(*restored, *courier.local_rejected),
            fenced=courier.fenced,
            mounted_bytes=self._mounter.moved_bytes if self._mounter is not None else 0,
            mount_bytes=self._mounter.total_bytes if self._mounter is not None else 0,
            restore_s=state.restore_s,
            received_bytes=courier.received_bytes,
            sent_bytes=courier.sent_bytes,
        )

    # ---- the beginning

    def _begin(self) -> None:
        if self._restarted and (count := kill_leftovers(self._job_env)):
            logger.warning("ended %d processes that an agent before this one had left", count)
        self._courier.start(restore_first=self._config.generation > 1 or self._restarted)
        if self._mounter is not None:
            self._mounter.start()
        if self._state.current is None:
            self._go_on()
        self._reporter.report(self.status(), now=True)
        self._sampler.start()
        self._watcher = self._watch()
        self._reporter.keep_room()

    def _go_on(self) -> None:
        """Data, setup, checkpoint, run: the next that can begin now."""
        state, mounter, restored = self._state, self._mounter, self._courier.restored
        mounted = mounter is None or mounter.done
        if mounted and restored is not None and state.restore_s is None:
            state.restore_s = round(time.monotonic() - self._begun, 3)
        if state.stop is not None:
            self._end()
        elif self._checks.failure is not None:
            self._end(Verdict("failed", self._checks.failure, self._checks.fault))
        elif mounter is not None and mounter.failure is not None:
            self._end(mounter.failure)
        elif not mounted:
            state.phase = "mounting"
        elif self._config.setup is not None and not state.setup_done:
            self._commands.start_setup(self._config.setup)
        elif restored is None:
            state.phase = "restoring"
        elif self._checks.ready():
            self._commands.start_run(restored)
        else:
            state.phase = "checking"

    # ---- the loop

    def _tick(self) -> None:
        if self._courier.crash is not None:
            raise AgentCrash(f"the courier: {self._courier.crash}")
        if self._mounter is not None and self._mounter.crash is not None:
            raise AgentCrash(f"the mounts: {self._mounter.crash}")
        self._see_barred()
        self._read_progress()
        notice = self._watcher.interruption if self._watcher is not None else None
        courier = self._courier
        self._stops.look(notice, fenced=courier.fenced, going_down=self.going_down, sent_bytes=courier.sent_bytes)
        if self._state.final:
            pass  # EC2 takes the machine; until then, show that we live
        elif self._state.verdict is not None:
            self._await_delivery()
        elif self._state.current is not None:
            self._watch_current()
        else:
            self._go_on()
        self._see_headway()
        self._host.show_life()
        self._reporter.report(self.status())

    def _see_headway(self) -> None:
        """Show the dead-man switch that the work goes on; end what does not, in better order than the switch would."""
        state, courier, now = self._state, self._courier, time.monotonic()
        job = state.current
        shell_lives = job is not None and job.exit_code() is None
        judged = job is not None and (state.in_setup or not shell_lives)  # setup, or what a shell has left behind
        seen = Seen(
            state.phase,
            (
                self._mounter.moved_bytes if self._mounter is not None else 0,
                courier.moved_bytes,
                state.progress.step,
                *(self._activity.counts(now) if judged else ()),
            ),
            trains=(shell_lives and not state.in_setup) or (state.final and not self._taken_late()),
            refused=state.verdict is not None and not state.final and courier.error is not None,
        )
        if not self._headway.look(seen, now):
            return
        if judged and not state.in_setup and state.stop is None:
            self._commands.end_idle()
        elif not state.final:
            why = courier.error or "neither data nor log, CPU nor disk"
            raise Stuck(f"{state.phase}: nothing has moved for {self._headway.still_s / 60:.0f} min ({why})")

    def _taken_late(self) -> bool:
        taken_at = self._state.taken_at
        return taken_at is not None and time.time() - taken_at > TAKEN_LATE_S

    def _cpu_s(self) -> float:
        job = self._state.current
        return sum(process.cpu_s for process in job.members()) if job is not None else 0.0

    def _see_barred(self) -> None:
        """Before hours are trained that can't be kept. What has ended waits: the person may yet give the rights."""
        since = self._courier.barred_since
        if self._state.verdict is None and since is not None and time.monotonic() - since > BARRED_S:
            raise Barred(
                f"{self._courier.error}; machines may not write there: `cloudtrain doctor` says what is missing"
            )

    def _over(self) -> bool:
        state = self._state
        if state.final and (state.taken_at is None or self.going_down or self._taken_late()):
            return True
        if self._host.real or not (self.going_down or self._cloud_is_dead()):
            return False
        logger.warning("this local host ends")
        if state.current is not None:
            state.current.end()  # a machine without power
        return True

    def _cloud_is_dead(self) -> bool:
        """On a local host: its cloud was killed, and nobody will ever end us."""
        since = self._watcher.refused_since if self._watcher is not None else None
        return since is not None and time.monotonic() - since > CLOUD_DEAD_S

    def _watch_current(self) -> None:
        """setup or run, alive or just ended."""
        state = self._state
        if state.current is None or not self._commands.ended():
            return
        self._read_progress()
        code = state.current.exit_code()
        if state.in_setup:
            self._setup_ended(code)
        else:
            state.run_seconds = self._run_seconds()
            state.exit_code = code
            self._end()

    def _setup_ended(self, code: int | None) -> None:
        state = self._state
        state.current, state.in_setup, state.setup_done = None, False, True
        if state.stop is None and code != 0:
            words = f"setup {exited(code)}{said(last_line(self._places.job_log, self._hide))}"
            self._end(Verdict("failed", words, "machine" if self._disk_is_full() else "job"))
        else:
            self._go_on()

    # ---- the end

    def _end(self, ending: Verdict | None = None) -> None:
        state = self._state
        log = self._places.job_log
        state.verdict = ending or verdict(
            stop=state.stop,
            exit_code=state.exit_code,
            done=state.progress.done,
            last_line=last_line(log, self._hide),
            disk_full=self._disk_is_full(),
        )
        state.phase = "saving"
        state.current = None
        if self._mounter is not None:
            self._mounter.leave()
        logger.info("the job has ended: %s", state.verdict)
        until = None if state.taken_at is None else job_deadline(time.time(), state.taken_at)
        self._courier.finish(Ending(self._final_status, state.verdict, until))

    def _final_status(self) -> AgentStatus:
        state = self._state
        phase, state.phase = state.phase, self._final_phase()
        try:
            return self.status()
        finally:
            state.phase = phase

    def _final_phase(self) -> str:
        if self._courier.fenced or self._state.verdict is None:
            return "stopped"
        return self._state.verdict.phase

    def _await_delivery(self) -> None:
        if self._courier.delivered or self._courier.fenced:
            self._state.phase = self._final_phase()
            self._state.final = True
            self._reporter.report(self.status(), now=True)

    # ---- small readings

    def _read_progress(self) -> None:
        path = self._places.progress
        with contextlib.suppress(OSError, ValueError, TypeError):  # not there yet, or not ours to judge: keep the last
            seen = path.stat()
            key = (seen.st_mtime_ns, seen.st_ino)
            if key != self._progress_seen:
                self._progress_seen = key
                self._state.progress = progress_from_json(path.read_bytes())
        progress = self._state.progress
        self._courier.prunes_local = not progress.stops_by_file
        self._courier.warm = progress.step > progress.start_step or self._run_seconds() > WARM_AFTER_S

    def _run_seconds(self) -> float:
        state = self._state
        if state.run_started is None or state.verdict is not None:
            return state.run_seconds
        return (state.shell_ended or time.monotonic()) - state.run_started

    def _disk_is_full(self) -> bool:
        return shutil.disk_usage(self._places.root).free < _LITTLE_ROOM_BYTES or says_disk_full(self._places.job_log)

    def _error(self) -> str | None:
        state = self._state
        if state.verdict is not None and state.verdict.error is not None:
            return state.verdict.error
        if state.final:
            return None
        if self._reporter.disk_full or shutil.disk_usage(self._places.root).free < _LITTLE_ROOM_BYTES:
            return f"{DISK_FULL}: raise resources.disk_size; what was published is safe"
        return self._courier.error or (self._mounter.trouble if self._mounter is not None else None)
