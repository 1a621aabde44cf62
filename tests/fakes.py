"""Stand-ins for the outside world, in memory and on a clock that only tests move.

``FakeCloud`` and ``FakeObjectStore`` keep the semantics of the real services, not their convenient versions:
tests/contract/ holds them to the same suite as the adapters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from cloudtrain.pricing.model import CapacityType, Pool
from cloudtrain.provisioner.errors import (
    AttemptOver,
    CloudGone,
    CloudtrainError,
    Conflict,
    NotFound,
    PoolUnavailable,
)
from cloudtrain.provisioner.model import (
    Attempt,
    Endpoint,
    FoundImage,
    Image,
    LaunchRequest,
    Machine,
    MachineState,
    Phase,
)

START_AT = 1_800_000_000.0
_FORGOTTEN_AFTER_S = 3600.0  # DescribeInstances: terminated instances are shown "for approximately one hour"


class FakeClock:
    """Time that passes only when somebody sleeps or a test says so."""

    def __init__(self, at: float = START_AT) -> None:
        self.at = at
        self.slept: list[float] = []

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds

    def advance(self, seconds: float) -> None:
        self.at += seconds


class Faults:
    """What goes wrong, and when: each call of a port asks here before and after it took effect.

    ``add`` scripts an error; ``hook``, where set, sees every moment and may raise what it likes (a crash, say).
    An error "after" is the reply that got lost: the call took effect.
    """

    def __init__(self) -> None:
        self.hook: Callable[[str, str], None] | None = None
        self._scripted: list[tuple[str, str, BaseException]] = []

    def add(self, call: str, error: BaseException, *, when: str = "before", times: int = 1) -> None:
        """Let the next ``times`` calls fail. ``when`` is "before" or "after"."""
        if when not in ("before", "after"):
            raise ValueError(when)
        self._scripted += [(call, when, error)] * times

    def clear(self) -> None:
        """Forget every scripted error."""
        self._scripted.clear()

    def pending(self, call: str) -> bool:
        """Whether a scripted error of the call still waits."""
        return any(entry[0] == call for entry in self._scripted)

    def moment(self, call: str, when: str) -> None:
        if self.hook is not None:
            self.hook(call, when)
        for entry in self._scripted:
            if entry[:2] == (call, when):
                self._scripted.remove(entry)
                raise entry[2]


@dataclass
class FakeInstance:
    """An instance of the fake cloud. Its state follows from these times and the clock."""

    instance_id: str
    request: LaunchRequest
    launched_at: float
    visible_at: float
    running_at: float
    endpoint: Endpoint
    spot_request_id: str | None
    shutting_down_at: float | None = None
    terminated_at: float | None = None
    reason: str | None = None
    spot_status: str | None = None
    doomed: list[tuple[float, str]] = field(default_factory=list)  # (when, reason): a notice was given

    def state(self, now: float) -> MachineState:
        """The instance's state at a time."""
        if self.terminated_at is not None and now >= self.terminated_at:
            return MachineState.TERMINATED
        if self.shutting_down_at is not None and now >= self.shutting_down_at:
            return MachineState.SHUTTING_DOWN
        return MachineState.RUNNING if now >= self.running_at else MachineState.PENDING

    def machine(self, now: float) -> Machine:
        """The instance as DescribeInstances would show it."""
        state = self.state(now)
        over = state in (MachineState.SHUTTING_DOWN, MachineState.TERMINATED)
        attempt = self.request.attempt
        return Machine(
            instance_id=self.instance_id,
            job_id=self.request.job_id,
            generation=attempt.generation,
            client_token=attempt.client_token,
            state=state,
            launched_at=self.launched_at,
            endpoint=self.endpoint if state is MachineState.RUNNING else None,
            state_reason=self.reason if over else None,
            state_message=f"{self.reason}: said by the fake cloud" if over and self.reason else None,
            spot_request_id=self.spot_request_id,
            spot_status=self.spot_status,
        )


class FakeCloud:
    """The Cloud port with EC2's semantics.

    New ids are hidden for ``hidden_s`` seconds, to lists and to terminate alike; machines boot for ``boot_s`` and shut
    down for ``shutdown_s``. A client token is idempotent in its zone: the same request again is the same machine;
    another request under it, or a terminated machine, is ``AttemptOver``. Every call is kept in ``calls``.
    """

    def __init__(
        self, clock: FakeClock, *, boot_s: float = 30.0, hidden_s: float = 2.0, shutdown_s: float = 20.0
    ) -> None:
        self.clock = clock
        self.boot_s = boot_s
        self.hidden_s = hidden_s
        self.shutdown_s = shutdown_s
        self.faults = Faults()
        self.dead = False  # True: the cloud is gone for good
        self.calls: list[tuple[str, str]] = []
        self.instances: dict[str, FakeInstance] = {}
        self.groups: set[tuple[str, str]] = set()  # (region, job id)
        self.leftovers: dict[str, tuple[str, str]] = {}  # volume or interface id -> (region, job id)
        self.prices: dict[Pool, Decimal] = {}
        self.images: dict[str, str] = {}  # SSM parameter -> AMI id
        self.known_images: dict[tuple[str, str], FoundImage] = {}  # (region, AMI id) -> what is shown of it
        self._refusals: list[tuple[Callable[[Pool], bool], CloudtrainError, list[int | None]]] = []

    # ---- the port

    def prepare(self, job_id: str, owner: str, regions: Iterable[str], options: object = None) -> None:
        for region in regions:
            with self._call("prepare", region):
                self.groups.add((region, job_id))

    def find_image(self, image: Image, region: str) -> FoundImage:
        with self._call("find_image", f"{region} {image.own_id or image.ssm_parameter}"):
            digest = hashlib.sha256(f"{region}{image.ssm_parameter}".encode()).hexdigest()
            image_id = image.own_id or self.images.get(image.ssm_parameter, f"ami-{digest[:17]}")
            if image.own_id is None:
                found = FoundImage(image_id, "Ubuntu", "/dev/sda1", 75, image.architecture, image.login_user)
                self.known_images.setdefault((region, image_id), found)
            known = self.known_images.get((region, image_id))
            if known is None:
                raise PoolUnavailable(f"image {image_id} in {region}: no such image", code="NoImage")
            if known.architecture != image.architecture:
                raise PoolUnavailable(f"image {image_id} in {region}: it is for {known.architecture}", code="NoImage")
            return known

    def price(self, pool: Pool) -> Decimal | None:
        with self._call("price", str(pool)):
            return self.prices.get(pool, Decimal("0.25")) if pool.capacity_type is CapacityType.SPOT else None

    def launch(self, request: LaunchRequest) -> Machine:
        pool = request.attempt.pool
        with self._call("launch", str(pool)):
            known = self._by_token(request)
            if known is not None:
                return self._again(known, request)
            self._refuse(pool)
            self.groups.add((pool.region, request.job_id))  # made where ``prepare`` was not called before
            return self._start(request).machine(self.clock.now())

    def machines(self, job_id: str, regions: Iterable[str]) -> tuple[Machine, ...]:
        wanted = list(regions)
        with self._call("machines", job_id):
            now = self.clock.now()
            return tuple(
                i.machine(now)
                for i in self._shown(now)
                if i.request.job_id == job_id and i.request.attempt.pool.region in wanted
            )

    def terminate(self, region: str, instance_ids: Iterable[str]) -> None:
        ids = list(instance_ids)
        with self._call("terminate", " ".join(ids)):
            now = self.clock.now()
            for instance in self._shown(now):  # a hidden id is "not found", and the machine lives on
                if instance.instance_id in ids and instance.request.attempt.pool.region == region:
                    self._end(instance, now, "Client.UserInitiatedShutdown", "instance-terminated-by-user")

    def sweep(self, job_id: str, regions: Iterable[str]) -> tuple[str, ...]:
        left: list[str] = []
        for region in regions:
            with self._call("sweep", region):
                self.leftovers = {k: v for k, v in self.leftovers.items() if v != (region, job_id)}
                if any(i.request.attempt.pool.region == region for i in self.live(job_id)):
                    left.append(f"security group cloudtrain-{job_id} in {region}")
                else:
                    self.groups.discard((region, job_id))
        return tuple(left)

    # ---- what tests do to it

    def refuse(self, pools: str | Callable[[Pool], bool], error: CloudtrainError, *, times: int | None = None) -> None:
        """Refuse launches in the pools: a predicate, or a text in ``str(pool)``. ``times`` None: for ever."""
        matches = (lambda pool: pools in str(pool)) if isinstance(pools, str) else pools
        self._refusals.append((matches, error, [times]))

    def interrupt(self, instance_id: str, *, notice_s: float = 120.0) -> None:
        """Take a spot machine back: its request closes at once, the machine ends ``notice_s`` seconds later."""
        instance = self.instances[instance_id]
        instance.spot_status = "instance-terminated-no-capacity"
        instance.doomed.append((self.clock.now() + notice_s, "Server.SpotInstanceTermination"))

    def kill(self, instance_id: str, reason: str = "Server.InternalError") -> None:
        """End a machine at once: broken hardware, or its own power-off ("Client.InstanceInitiatedShutdown")."""
        self._end(self.instances[instance_id], self.clock.now(), reason, None)

    def live(self, job_id: str | None = None) -> list[FakeInstance]:
        """Every machine that is not terminated, whether or not the cloud shows it yet."""
        now = self.clock.now()
        self._settle(now)
        return [
            i
            for i in self.instances.values()
            if i.state(now) is not MachineState.TERMINATED and job_id in (None, i.request.job_id)
        ]

    def count(self, call: str) -> int:
        """How often a call was made."""
        return sum(name == call for name, _ in self.calls)

    # ---- inside

    def _call(self, name: str, about: str) -> _Call:
        self.calls.append((name, about))
        return _Call(self, name)

    def _settle(self, now: float) -> None:
        for instance in self.instances.values():
            for at, reason in instance.doomed:
                if now >= at:
                    self._end(instance, at, reason, None)

    def _shown(self, now: float) -> list[FakeInstance]:
        self._settle(now)
        return [
            i
            for i in self.instances.values()
            if now >= i.visible_at and (i.terminated_at is None or now < i.terminated_at + _FORGOTTEN_AFTER_S)
        ]

    def _end(self, instance: FakeInstance, at: float, reason: str, spot_status: str | None) -> None:
        if instance.terminated_at is not None:
            return
        instance.shutting_down_at, instance.terminated_at = at, at + self.shutdown_s
        instance.reason = reason
        if instance.spot_request_id and spot_status and instance.spot_status == "fulfilled":
            instance.spot_status = spot_status

    def _by_token(self, request: LaunchRequest) -> FakeInstance | None:
        mine = (request.attempt.client_token, request.attempt.pool.region, request.attempt.pool.zone_id)
        for instance in self.instances.values():
            attempt = instance.request.attempt
            if (attempt.client_token, attempt.pool.region, attempt.pool.zone_id) == mine:
                return instance
        return None

    def _again(self, known: FakeInstance, request: LaunchRequest) -> Machine:
        if _what_counts(known.request) != _what_counts(request):
            raise AttemptOver("the token was used with other parameters", code="IdempotentParameterMismatch")
        if known.state(self.clock.now()) is MachineState.TERMINATED:
            raise AttemptOver("the token's machine is terminated", code="IdempotentInstanceTerminated")
        return known.machine(self.clock.now())

    def _refuse(self, pool: Pool) -> None:
        for matches, error, left in self._refusals:
            if matches(pool) and left[0] != 0:
                left[0] = left[0] if left[0] is None else left[0] - 1
                raise error

    def _start(self, request: LaunchRequest) -> FakeInstance:
        now, number = self.clock.now(), len(self.instances) + 1
        spot = request.attempt.pool.capacity_type is CapacityType.SPOT
        instance = FakeInstance(
            instance_id=f"i-{number:017x}",
            request=request,
            launched_at=now,
            visible_at=now + self.hidden_s,
            running_at=now + self.boot_s,
            endpoint=Endpoint(f"203.0.113.{number % 250 + 1}", 22),
            spot_request_id=f"sir-{number:08x}" if spot else None,
            spot_status="fulfilled" if spot else None,
        )
        self.instances[instance.instance_id] = instance
        return instance


def _what_counts(request: LaunchRequest) -> LaunchRequest:
    """The request as RunInstances would see it: of the attempt only what is sent."""
    sent = request.attempt
    bare = Attempt(sent.generation, sent.pool, sent.client_token, Phase.CLAIMED, 0.0)
    return replace(request, attempt=bare)


class _Call:
    """One call: the moment before it, and the moment after it took effect."""

    def __init__(self, world: FakeCloud | FakeObjectStore, name: str) -> None:
        self.world = world
        self.name = name

    def __enter__(self) -> None:
        if self.world.dead:
            raise CloudGone("the cloud is gone")
        self.world.faults.moment(self.name, "before")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.world.faults.moment(self.name, "after")


class FakeObjectStore:
    """The ObjectStore port: a bucket in a dictionary, with ETags and conditions as S3 has them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults = Faults()
        self.dead = False

    def get(self, key: str) -> tuple[bytes, str] | None:
        with _Call(self, "get"):
            data = self.objects.get(key)
            return None if data is None else (data, _etag(data))

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        with _Call(self, "put"):
            now = self.objects.get(key)
            if if_none_match and now is not None:
                raise Conflict(f"{key} is there already")
            if if_match is not None and (now is None or _etag(now) != if_match):
                raise Conflict(f"{key} was changed by somebody else")
            self.objects[key] = data
            return _etag(data)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        with _Call(self, "list"):
            found = [(key, len(data)) for key, data in sorted(self.objects.items()) if key.startswith(prefix)]
        return iter(found)

    def download(self, key: str, path: Path) -> None:
        with _Call(self, "download"):
            if key not in self.objects:
                raise NotFound(f"no object {key}")
            path.write_bytes(self.objects[key])

    def upload(self, path: Path, key: str) -> None:
        with _Call(self, "upload"):
            self.objects[key] = path.read_bytes()

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        with _Call(self, "delete"):
            for key in wanted:
                self.objects.pop(key, None)


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
