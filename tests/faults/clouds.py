"""EC2, S3 and the SQLite store of the simulator: the suite's fakes, with what a schedule adds to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.adapters import terminating
from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.history import Fact
from cloudtrain.provisioner.model import JobRecord, LaunchRequest, Machine, MachineState
from cloudtrain.provisioner.ports import Stored
from tests.fake_store import FakeStore
from tests.fakes import FakeClock, FakeCloud, FakeInstance, FakeObjectStore
from tests.faults.machines import Machine as Box

if TYPE_CHECKING:
    from tests.faults.simulation import Simulation

ANOTHERS = "i-0123456789abcdef0"  # of another job, and not shown yet
UNSEEN_REQUEST_S = 90.0  # how long a spot request's new state may stay unseen


class SimCloud(FakeCloud):
    """EC2: ids that appear late or vanish for a while, slow ends, machines that never boot."""

    def __init__(self, sim: Simulation, clock: FakeClock) -> None:
        super().__init__(clock, boot_s=30.0, hidden_s=1.0, shutdown_s=20.0)
        self.sim = sim
        self.faults.hook = sim.moment
        self.boxes: dict[str, Box] = {}
        self.unseen_until: dict[str, float] = {}

    def launch(self, request: LaunchRequest) -> Machine:
        self.sim.watch.leaves(request.user_data, "user data", host_key=True)
        return super().launch(request)

    def machines(self, job_id: str, regions: Iterable[str]) -> tuple[Machine, ...]:
        found = super().machines(job_id, regions)
        if self.sim.window("vanish") is not None:
            return ()
        return tuple(self._as_shown(machine) for machine in found)

    def terminate(self, region: str, instance_ids: Iterable[str]) -> None:
        """By the real adapter's batches. Others' machines share a call: its callers' ids are put together."""
        ids = list(instance_ids)
        if self.sim.window("crowd") is not None:
            ids = [ANOTHERS, *ids]
        for instance_id in ids:
            if instance_id in self.boxes and self.boxes[instance_id].running:
                self.sim.watch.ended_by_us(self.boxes[instance_id])
        refused = terminating.terminate(_Calls(self, region), region, ids)  # type: ignore[arg-type]
        for instance_id in ids:
            if instance_id != ANOTHERS and instance_id in refused:
                raise refused[instance_id]

    def terminate_all(self, region: str, ids: list[str]) -> None:
        """TerminateInstances as EC2 has it: with one id that it does not know, it ends none."""
        with self._call("terminate", " ".join(ids)):
            now = self.sim.now
            shown = {i.instance_id: i for i in self._shown(now) if i.request.attempt.pool.region == region}
            if any(instance_id not in shown for instance_id in ids):
                code = {"Code": "InvalidInstanceID.NotFound", "Message": "The instance ID does not exist"}
                answer: Any = {"Error": code, "ResponseMetadata": {"HTTPStatusCode": 400}}
                raise ClientError(answer, "TerminateInstances")
            for instance_id in ids:
                self._end(shown[instance_id], now, "Client.UserInitiatedShutdown", "instance-terminated-by-user")

    def _as_shown(self, machine: Machine) -> Machine:
        if machine.spot_status != "fulfilled" and self.sim.now < self.unseen_until.get(machine.instance_id, 0.0):
            return replace(machine, spot_status="fulfilled" if machine.spot_request_id else None)
        return machine

    def power_off(self, instance: FakeInstance, at: float) -> None:
        """A machine ends itself."""
        self._end(instance, at, "Client.InstanceInitiatedShutdown", "instance-terminated-by-user")

    def settle(self) -> None:
        """What was announced happens."""
        self._settle(self.sim.now)

    def take_back(self, fault_what: str, notice_s: float) -> None:
        """EC2 wants the newest spot machine that runs."""
        live = [i for i in self.live() if i.state(self.sim.now) is MachineState.RUNNING]
        live = [i for i in live if self.boxes[i.instance_id].notice_at is None]
        spot = [i for i in live if i.request.attempt.pool.capacity_type is CapacityType.SPOT]
        if not spot:
            return
        instance = spot[-1]
        self.sim.log(f"EC2 wants {instance.instance_id} back, {notice_s:g} s ahead {fault_what}")
        if fault_what == "unseen-request":
            self.unseen_until[instance.instance_id] = self.sim.now + UNSEEN_REQUEST_S
        agent = self.boxes[instance.instance_id].agent
        if fault_what == "blind" and agent is not None:
            agent.blind = True
        self.interrupt(instance.instance_id, notice_s=notice_s)
        self.boxes[instance.instance_id].notice_at = instance.doomed[0][0]
        if fault_what == "withdrawn":
            instance.doomed.clear()

    def _end(self, instance: FakeInstance, at: float, reason: str, spot_status: str | None) -> None:
        if instance.terminated_at is None:
            late = self.sim.window("late-end")
            self.shutdown_s = late.x if late is not None else 20.0
            self.sim.poke()
        super()._end(instance, at, reason, spot_status)

    def _start(self, request: LaunchRequest) -> FakeInstance:
        hidden, boot = self.sim.window("hidden"), self.sim.window("boot")
        self.hidden_s = hidden.x if hidden is not None else 1.0
        self.boot_s = 30.0
        if boot is not None and boot.what in ("slow", "never"):
            self.boot_s = boot.x if boot.what == "slow" else 1e9
        instance = super()._start(request)
        box = Box.booted(self.sim, instance)
        box.refuses = boot is not None and boot.what == "ship-refused"
        self.boxes[instance.instance_id] = box
        self.sim.log(
            f"{instance.instance_id} starts for generation {request.attempt.generation} in {request.attempt.pool}"
        )
        self.sim.watch.launched(box)
        return instance


@dataclass(frozen=True)
class _Calls:
    """The one call of boto3's client that the adapter's batching makes."""

    cloud: SimCloud
    region: str

    def terminate_instances(self, *, InstanceIds: list[str]) -> None:
        self.cloud.terminate_all(self.region, InstanceIds)


class SimBucket(FakeObjectStore):
    """S3. What the controllers write is looked at as it arrives; agents write past the ports' faults."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__()
        self.sim = sim
        self.faults.hook = sim.moment

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        try:
            return super().put(key, data, if_match=if_match, if_none_match=if_none_match)
        finally:
            if self.objects.get(key) is data:
                self.sim.watch.written(key, data)


class SimStore(FakeStore):
    """A home's SQLite: its disk may be full, and its process may die on either side of a save."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__()
        self.sim = sim
        self._on_disk: Stored | None = None

    def save(
        self,
        record: JobRecord,
        *,
        version: int,
        etag: str | None,
        facts: Sequence[Fact] = (),
        durable: bool = True,
    ) -> int:
        self._room()
        self.sim.moment("save", "before")
        saved = super().save(record, version=version, etag=etag, facts=facts, durable=durable)
        if durable:
            self._on_disk = self._rows[record.job_id].stored
        self.sim.kept(record)
        self.sim.moment("save", "after")
        return saved

    def lose_power(self) -> None:
        """What no disk was waited for is gone."""
        if self._on_disk is not None:
            row = self._rows[self._on_disk.record.job_id]
            row.stored = replace(self._on_disk, wanted=row.stored.wanted)

    def put(self, record: JobRecord, etag: str) -> None:
        self._room()
        super().put(record, etag)
        self._on_disk = self._rows[record.job_id].stored

    def add_event(self, job_id: str, at: float, text: str) -> None:
        self._room()
        self.sim.watch.leaves(text, "event")
        self.sim.log(f"  “{text}”")
        super().add_event(job_id, at, text)

    def set_live(self, job_id: str, document: str) -> None:
        self._room()

    def _room(self) -> None:
        if self.sim.window("disk-full") is not None:
            raise CloudtrainError("jobs.db: database or disk is full: nothing was changed")
