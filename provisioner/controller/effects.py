"""Act: perform one effect and say what came of it. The only place where decisions touch the world."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from cloudtrain.provisioner.adapters.userdata import extend_command
from cloudtrain.provisioner.controller.collect import CollectError, Counted, collect
from cloudtrain.provisioner.controller.host_keys import KeyRefused, change_host_key
from cloudtrain.provisioner.controller.job_secrets import kept_secrets
from cloudtrain.provisioner.controller.journal import SLEPT_S, see_ours
from cloudtrain.provisioner.controller.reach import Reach, image_of
from cloudtrain.provisioner.controller.takeover import keep_attempt, keep_snapshot, look
from cloudtrain.provisioner.decide import effects as to
from cloudtrain.provisioner.decide.allowance import machine_limit, seconds_per_gb
from cloudtrain.provisioner.decide.limits import limits_of
from cloudtrain.provisioner.decide.outcomes import (
    Collected,
    Launched,
    LaunchRefused,
    LaunchUnknown,
    NotCollected,
    Outcome,
    Repriced,
    Resolved,
    Shipped,
    ShipRefused,
    SnapshotKept,
    StopHeard,
    Swept,
)
from cloudtrain.provisioner.errors import (
    AccessError,
    AttemptOver,
    CloudError,
    CloudtrainError,
    CloudUnreachable,
    Conflict,
    NotFound,
    PoolUnavailable,
    QuotaExceeded,
    RegionDenied,
    RemoteError,
    Scope,
    UsageError,
)
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, LaunchRequest, Machine
from cloudtrain.provisioner.names import INSTANCE_PROFILE
from cloudtrain.provisioner.ports import Target
from cloudtrain.provisioner.shipping.bundle import bundle, ship_command
from cloudtrain.provisioner.shipping.snapshot import TAR_NAME
from cloudtrain.trainer.contract import AgentConfig, Keys, Latest, Notice, latest_from_json, to_json

SHIP_TIMEOUT_S = 60.0  # for the agent alone, its start included
SLOW_LINK_BYTES_PER_S = 500_000  # a workdir gets this much longer; a link slower than that is reported, not waited for
SHIP_LOOK_S = 10.0  # so long a pass waits for it
COMMAND_TIMEOUT_S = 20.0
STOP_GRACE_S = 30.0
FENCE_TRIES = 10
LIFETIME_S = 7 * 86400.0  # of a machine whose job has no limit: the dead-man switch's
LIFETIME_SLACK_S = 3600.0
LET_GO_TRIES, LET_GO_PAUSE_S = 30, 5.0  # of clearing away: a new machine may not be known yet, and ends within minutes
FENCED = "Fenced"  # our own code: the checkpoints' pointer is of a newer generation
T = TypeVar("T")
INLINE_BYTES = 4_000_000  # a smaller snapshot is in the bucket before a pass would notice


class Effects:
    """The effects of one job. ``perform`` returns None when the outcome is unknown: the next pass asks again."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._keeping: Future[None] | None = None  # the snapshot's way into the bucket
        self._shipping: dict[int, Future[Outcome]] = {}  # by generation
        self._made: list[tuple[str, str]] = []  # region and id of each machine that was launched here

    def perform(self, record: JobRecord, effect: to.Effect) -> Outcome | None:
        """Do it. None: done, or unknown; the next pass looks and asks again. Raises CloudGone, and any other
        CloudtrainError for what this effect alone could not do."""
        try:
            return self._perform(record, effect)
        except RemoteError:
            return None  # SSH failure is not machine failure

    def let_go(self, record: JobRecord) -> None:
        """Another home drives the job. Where it has ended it already, nobody else would clear away what was made here
        since: this computer may have slept between looking and making it."""
        with contextlib.suppress(CloudtrainError):
            if not record.regions or not look(self._reach.objects, record.job_id).record.status.final:
                return
            for _ in range(LET_GO_TRIES):
                if self._cleared(record):
                    return
                self._reach.clock.sleep(LET_GO_PAUSE_S)

    def _cleared(self, record: JobRecord) -> bool:
        """Whether the machines that were made here are shown as gone, and what is beside them is."""
        cloud = self._reach.cloud
        with contextlib.suppress(CloudtrainError):
            for region, instance_id in self._made:
                cloud.terminate(region, [instance_id])
            gone = {m.instance_id for m in cloud.machines(record.job_id, record.regions) if m.gone}
            return not cloud.sweep(record.job_id, record.regions) and gone.issuperset(made for _, made in self._made)
        return False

    def _perform(self, record: JobRecord, effect: to.Effect) -> Outcome | None:
        match effect:
            case to.Resolve(generation=generation) if not self._reach.turn(_attempt(record, generation).pool.region):
                return None
            case to.Resolve() | to.Launch():
                return self._ask_for_machine(record, effect)
            case to.Ship(generation=generation, machine=machine):
                return self._ship_aside(record, _attempt(record, generation), machine)
            case to.Admit(region=region):
                self._reach.cloud.prepare(record.job_id, record.owner, [region], record.spec.aws)
            case to.Reprice(generation=generation):
                return Repriced(generation, self._reach.cloud.price(_attempt(record, generation).pool))
            case to.RequestStop(generation=generation, machine=machine, taken=taken):
                return self._request_stop(_attempt(record, generation), machine, taken=taken)
            case to.KeepSnapshot():
                return self._keep_snapshot(record)
            case to.Terminate(region=region, instance_id=instance_id):
                self._reach.cloud.terminate(region, [instance_id])
            case to.Collect():
                return self._collect(record)
            case to.Sweep():
                try:
                    return Swept(self._reach.cloud.sweep(record.job_id, record.regions) if record.regions else ())
                except (CloudUnreachable, AccessError) as error:
                    return Swept((str(error),))
        return None

    def _keep_snapshot(self, record: JobRecord) -> Outcome | None:
        """In a thread of its own where it takes long: the loop must hear notices meanwhile."""
        objects, job_dir = self._reach.objects, self._reach.job_dir
        if (job_dir / TAR_NAME).stat().st_size <= INLINE_BYTES:
            keep_snapshot(record, objects, job_dir)
            return SnapshotKept()
        if self._keeping is None:
            self._keeping = _aside("snapshot", lambda: keep_snapshot(record, objects, job_dir))
        if not self._keeping.done():
            return None
        keeping, self._keeping = self._keeping, None
        keeping.result()  # what went wrong is told, and it is tried again
        return SnapshotKept()

    def _collect(self, record: JobRecord) -> Outcome:
        objects = Counted(self._reach.objects)
        try:
            collect(record, objects, self._reach.job_dir)
        except (CollectError, CloudUnreachable) as error:
            return NotCollected(str(error), objects.bytes)
        return Collected(objects.bytes)

    def _ask_for_machine(self, record: JobRecord, effect: to.Resolve | to.Launch) -> Outcome:
        attempt = _attempt(record, effect.generation)
        asked = before = isinstance(effect, to.Launch) and effect.again
        try:
            if isinstance(effect, to.Resolve):
                image = image_of(attempt, record.spec.aws)
                found = self._reach.cloud.find_image(image, attempt.pool.region)
                found = replace(found, root_gib=max(found.root_gib, image.root_gib))
                return Resolved(attempt.generation, found, self._reach.cloud.price(attempt.pool))
            self._reach.cloud.prepare(record.job_id, record.owner, [attempt.pool.region], record.spec.aws)
            kept_secrets(record, self._reach.job_dir)  # before anything is paid for
            self._fence(record, attempt.generation)
            request = self._request(record, attempt)
            looked_at = self._reach.clock.now()
            see_ours(record, self._reach.objects)
            keep_attempt(record, attempt.generation, self._reach.objects, self._reach.job_dir)
            if self._reach.clock.now() - looked_at > SLEPT_S:
                see_ours(record, self._reach.objects)
            asked = True
            machine = self._reach.cloud.launch(request)
            self._made.append((attempt.pool.region, machine.instance_id))
            return Launched(attempt.generation, machine)
        except CloudUnreachable as error:
            return LaunchUnknown(attempt.generation, str(error), asked, broken=error.broken)
        except AttemptOver as error:
            return self._spent(record, attempt, error, asked=before)
        except CloudtrainError as error:
            return replace(refusal(attempt.generation, error), asked=before)

    def _spent(self, record: JobRecord, attempt: Attempt, error: AttemptOver, *, asked: bool) -> Outcome:
        """The attempt's token has made a machine before, in a pass whose end nobody saw: look it up by its tag. A new
        machine may be missing from lists for a while; an attempt whose machine never shows is over."""
        if error.code == FENCED:
            return LaunchRefused(attempt.generation, str(error), asked=asked)
        try:
            listed = self._reach.cloud.machines(record.job_id, [attempt.pool.region])
        except CloudUnreachable as silent:
            return LaunchUnknown(attempt.generation, str(silent), asked=True)
        mine = next((m for m in listed if m.client_token == attempt.client_token), None)
        if mine is not None:
            return Launched(attempt.generation, mine)
        return LaunchRefused(attempt.generation, str(error), EndReason.MACHINE_LOST, Scope.NONE, asked=True)

    def _request(self, record: JobRecord, attempt: Attempt) -> LaunchRequest:
        image = image_of(attempt, record.spec.aws)
        assert attempt.image_id is not None
        return LaunchRequest(
            job_id=record.job_id,
            owner=record.owner,
            attempt=attempt,
            image=image,
            image_id=attempt.image_id,
            disk_gib=max(image.root_gib, record.spec.disk_size_gib or 0),
            user_data=self._reach.files.user_data(attempt, self._dead_at(record, attempt)),
            instance_profile=record.spec.aws.iam_instance_profile or INSTANCE_PROFILE,
            options=record.spec.aws,
            bucket=record.bucket,
        )

    def _fence(self, record: JobRecord, generation: int) -> None:
        """Raise the pointer's generation, its checkpoint kept: from here on no older machine can publish."""
        key = Keys(record.prefix).latest
        for _ in range(FENCE_TRIES):
            found = self._reach.objects.get(key)
            latest = latest_from_json(found[0]) if found else Latest(0)
            if latest.generation == generation:
                return
            if latest.generation > generation:
                raise AttemptOver(f"generation {latest.generation} of this job exists already", code=FENCED)
            raised = Latest(generation, latest.step, latest.key, latest.manifest_sha256)
            data = to_json(raised).encode()
            try:
                self._reach.objects.put(key, data, if_match=found[1] if found else None, if_none_match=found is None)
            except Conflict:  # the old machine published just now: take up its checkpoint
                continue
            return
        raise CloudUnreachable("the checkpoints' pointer keeps changing; trying again")

    def _ship_aside(self, record: JobRecord, attempt: Attempt, machine: Machine) -> Outcome | None:
        """In a thread of its own: while a large workdir travels, or nobody answers any more, the machine may be lost,
        and only a pass can see that."""
        going = self._shipping.get(attempt.generation)
        if going is None:
            going = _aside("ship", lambda: self._ship(record, attempt, machine))
            self._shipping[attempt.generation] = going
        wait([going], timeout=SHIP_LOOK_S)
        if not going.done():
            return None
        del self._shipping[attempt.generation]
        return going.result()

    def _ship(self, record: JobRecord, attempt: Attempt, machine: Machine) -> Outcome:
        image = image_of(attempt, record.spec.aws)
        try:
            change_host_key(self._reach, record, attempt, machine)
        except KeyRefused as error:
            return ShipRefused(attempt.generation, str(error), image=True)
        target = self._reach.target(attempt, machine)
        spec = record.spec
        local = record.cloud == "local"
        kind = next(o.instance for o in record.offerings if o.pool == attempt.pool)
        config = AgentConfig(
            job_id=record.job_id,
            generation=attempt.generation,
            bucket=record.bucket,
            region=record.region,
            prefix=record.prefix,
            run=spec.run,
            setup=spec.setup,
            envs=dict(spec.envs),
            checkpoint_interval=str(spec.checkpoint_interval),
            checkpoint_keep=spec.checkpoint_keep,
            host="local" if local else "systemd",
            login_user=None if local else target.user,
            expect_accelerator=f"{kind.accelerator}:{kind.accelerator_count}",
            expect_gpus=kind.accelerator_count,
            **_limit(record, attempt, self._reach.clock.now()),
            sent_at=self._reach.clock.now(),
            venv=image.venv,
            scratch=image.scratch if kind.local_nvme_gb else None,
            mounts=record.mounts,
        )
        snapshot = self._reach.job_dir if record.snapshot_sha256 else None
        values = kept_secrets(record, self._reach.job_dir)
        with bundle(config, snapshot, values, with_deps=image.agent_brings_boto3) as stream:
            timeout_s = _ship_timeout_s(snapshot)
            result = self._reach.remote.run(target, ship_command(image.venv), stdin=stream, timeout_s=timeout_s)
        answer = _last_json(result.stdout)
        if answer.get("ok") is True:
            return self._extend_deadline(record, attempt, target)
        words = answer.get("error") or result.stderr.decode(errors="replace").strip() or f"exit {result.exit_code}"
        text = f"the machine refused the job: {str(words).splitlines()[-1]}"
        return ShipRefused(attempt.generation, text, image=answer.get("image") is True)

    def _dead_at(self, record: JobRecord, attempt: Attempt) -> float:
        """When the machine ends itself, whoever watches: an hour, to boot, save and go, after the job's limits."""
        now = self._reach.clock.now()
        limit = machine_limit(record, attempt, now, limits_of(record.cloud))
        longest = attempt.claimed_at + LIFETIME_S
        return longest if limit is None else min(longest, now + limit[0] + LIFETIME_SLACK_S)

    def _extend_deadline(self, record: JobRecord, attempt: Attempt, target: Target) -> Outcome:
        """From the boot deadline to the hard one. A machine whose switch does not move would end in the middle of its
        work: it does not count as ready, and another one is taken."""
        at_s = self._dead_at(record, attempt)
        result = self._reach.remote.run(target, extend_command(at_s), timeout_s=COMMAND_TIMEOUT_S)
        if result.exit_code != 0:
            words = result.stderr.decode(errors="replace").strip() or f"exit {result.exit_code}"
            text = f"the machine's dead-man switch could not be set: {words.splitlines()[-1]}"
            return ShipRefused(attempt.generation, text)
        return Shipped(attempt.generation)

    def _request_stop(self, attempt: Attempt, machine: Machine, *, taken: bool) -> Outcome | None:
        if not machine.addressed:
            return None
        target = self._reach.target(attempt, machine)
        notice = to_json(Notice("interruption" if taken else "stop", self._reach.clock.now() + STOP_GRACE_S))
        command = f"cd cloudtrain/run && printf %s '{notice}' > .stop.tmp && mv .stop.tmp stop.json"
        result = self._reach.remote.run(target, command, timeout_s=COMMAND_TIMEOUT_S)
        return StopHeard(attempt.generation) if result.exit_code == 0 and not taken else None


def refusal(generation: int, error: CloudtrainError) -> LaunchRefused:
    """What a refused launch means for its attempt and for other pools. Raises what is no refusal."""
    match error:
        case QuotaExceeded():
            return LaunchRefused(generation, str(error), EndReason.QUOTA, error.scope)
        case RegionDenied():
            return LaunchRefused(generation, str(error), EndReason.DENIED, Scope.REGION, error.lasting)
        case PoolUnavailable():
            return LaunchRefused(generation, str(error), scope=error.scope, lasting=error.lasting)
        case CloudError() | NotFound():  # what nobody has met is tried once in each pool, and not again today
            return LaunchRefused(generation, str(error), lasting=True)
        case AccessError() | UsageError():
            return LaunchRefused(generation, str(error), EndReason.REFUSED, Scope.REQUEST)
    raise error


def _aside(name: str, work: Callable[[], T]) -> Future[T]:
    """Begin work in a thread of its own."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def _limit(record: JobRecord, attempt: Attempt, now: float) -> dict[str, Any]:
    """What the machine itself keeps of the job's limits, from its agent's start on."""
    found = machine_limit(record, attempt, now, limits_of(record.cloud))
    if found is None:
        return {}
    seconds, limit = found
    if attempt.started_at is not None:  # an agent of it was started before
        seconds += now - attempt.started_at
    spec = record.spec
    words = f"the budget of ${spec.budget_usd}" if limit is EndReason.BUDGET else f"max_run of {spec.max_run_s:.0f} s"
    kept = {"limit_s": seconds, "limit": "budget" if limit is EndReason.BUDGET else "max_run", "limit_words": words}
    return kept | {"limit_s_per_gb": seconds_per_gb(record, attempt) if limit is EndReason.BUDGET else 0.0}


def _ship_timeout_s(snapshot: Path | None) -> float:
    size = (snapshot / TAR_NAME).stat().st_size if snapshot is not None else 0
    return SHIP_TIMEOUT_S + size / SLOW_LINK_BYTES_PER_S


def _attempt(record: JobRecord, generation: int) -> Attempt:
    return next(a for a in record.attempts if a.generation == generation)


def _last_json(output: bytes) -> dict[str, object]:
    """The JSON object on the last line that holds one; {} where there is none."""
    for line in reversed(output.decode(errors="replace").splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return {}
