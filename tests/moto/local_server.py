"""The embedded cloud in this process, for tests: a clock to turn, hosts that are only recorded, real boto3 in front."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

from cloudtrain.pricing.model import CapacityType, InstanceType, Money, Offering, Pool
from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.localcloud.client import LocalCloud
from cloudtrain.provisioner.localcloud.daemon import Server
from cloudtrain.provisioner.localcloud.hosts import HostSpec
from cloudtrain.provisioner.localcloud.state import LocalState, Options

REGION = "us-east-1"
ZONE = "use1-az4"
KIND = "g4dn.xlarge"
_DAY = date(2026, 11, 1)


@dataclass
class FakeHost:
    """A host that does nothing and remembers what was done to it."""

    spec: HostSpec
    endpoint: tuple[str, int] = ("127.0.0.1", 2222)
    user: str = "nobody"
    console: str = "-----BEGIN SSH HOST KEY KEYS-----\nssh-ed25519 AAAA\n-----END SSH HOST KEY KEYS-----\n"
    wants_off: bool = False
    at_step: int | None = None
    cut: bool = False
    killed: list[float] = field(default_factory=list)

    def poweroff_requested(self) -> bool:
        return self.wants_off

    def kill(self, *, grace_s: float) -> None:
        self.killed.append(grace_s)

    def step(self) -> int | None:
        return self.at_step

    def set_cut(self, cut: bool) -> None:
        self.cut = cut


class Clock:
    """The real time, plus what a test adds."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time() + self.ahead_s


@dataclass
class Cloud:
    """What a test holds."""

    server: Server
    state: LocalState
    clock: Clock
    clients: Clients
    local: LocalCloud
    hosts: dict[str, FakeHost] = field(default_factory=dict)
    boot: threading.Event = field(default_factory=threading.Event)
    image_id: str = ""
    subnets: dict[str, str] = field(default_factory=dict)
    _tokens: int = 0

    @property
    def ec2(self) -> Any:
        return self.clients.client("ec2", REGION)

    def token(self) -> str:
        self._tokens += 1
        return f"token-{self._tokens}"

    def request(self, **changes: Any) -> dict[str, Any]:
        """A sound RunInstances request, changed; a value None leaves the key out."""
        request: dict[str, Any] = {
            "ImageId": self.image_id,
            "InstanceType": KIND,
            "MinCount": 1,
            "MaxCount": 1,
            "SubnetId": self.subnets[ZONE],
            "ClientToken": self.token(),
            "InstanceMarketOptions": {"MarketType": "spot"},
            "InstanceInitiatedShutdownBehavior": "terminate",
            "UserData": "#cloud-config\n",
        }
        return {name: value for name, value in (request | changes).items() if value is not None}

    def run(self, **changes: Any) -> dict[str, Any]:
        """Launch; the instance of the reply."""
        reply = self.clients.launcher(REGION).run_instances(**self.request(**changes))
        [instance] = reply["Instances"]
        return dict(instance)

    def up(self, **changes: Any) -> str:
        """Launch, and wait until it runs; the instance id."""
        instance_id = str(self.run(**changes)["InstanceId"])
        self.wait(instance_id, "running")
        return instance_id

    def describe(self, instance_id: str) -> dict[str, Any]:
        [reservation] = self.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
        [instance] = reservation["Instances"]
        return dict(instance)

    def spot_request(self, instance_id: str) -> dict[str, Any]:
        filters = [{"Name": "instance-id", "Values": [instance_id]}]
        [found] = self.ec2.describe_spot_instance_requests(Filters=filters)["SpotInstanceRequests"]
        return dict(found)

    def wait(self, instance_id: str, state: str) -> dict[str, Any]:
        found: dict[str, Any] = until(lambda: self.describe(instance_id), lambda i: i["State"]["Name"] == state)
        return found


def until(look: Any, right: Any, timeout_s: float = 10.0) -> Any:
    """Look again until it is right; the last look. Fails after ten seconds."""
    deadline = monotonic() + timeout_s
    while True:
        found = look()
        if right(found):
            return found
        assert monotonic() < deadline, found
        sleep(0.01)


def tagged(job: str) -> list[dict[str, Any]]:
    """TagSpecifications of an instance of a job."""
    return [{"ResourceType": "instance", "Tags": [{"Key": "cloudtrain:job", "Value": job}]}]


def offerings() -> tuple[Offering, ...]:
    """A small catalogue."""
    t4 = InstanceType(KIND, "T4", 1, 16, 4, 16, "x86_64", 125, "a test", _DAY)
    made_up = InstanceType("p9.2xlarge", "X9", 2, 80, 8, 64, "x86_64", 0, "a test", _DAY)
    return tuple(
        Offering(Pool("aws", REGION, zone, kind.name, capacity), kind, Money(Decimal(usd)), "a test", _DAY)
        for kind, zone, capacity, usd in [
            (t4, "use1-az4", CapacityType.SPOT, "0.20"),
            (t4, "use1-az6", CapacityType.SPOT, "0.25"),
            (t4, "use1-az4", CapacityType.ON_DEMAND, "0.526"),
            (made_up, "use1-az4", CapacityType.ON_DEMAND, "9.9"),
        ]
    )


@contextmanager
def serving(home: Path, **options: Any) -> Iterator[Cloud]:
    """An embedded cloud in this process, ended and forgotten at the close."""
    from moto.core.base_backend import BackendDict

    BackendDict.reset()
    clock = Clock()
    state = LocalState("testcloud", home, Options(**({"hide_s": 0.0} | options)), offerings(), clock, secret="s3cret")
    hosts: dict[str, FakeHost] = {}
    boot = threading.Event()
    boot.set()

    def start(_kind: str, spec: HostSpec) -> FakeHost:
        boot.wait(10)
        hosts[spec.instance_id] = FakeHost(spec)
        return hosts[spec.instance_id]

    server = Server(state, start=start)
    server.start()
    try:
        clients = Clients("local", local_endpoint=state.endpoint_url)
        local = LocalCloud(state.id, server.port, 0, state.secret, "embedded", 0.0)
        cloud = Cloud(server, state, clock, clients, local, hosts, boot)
        images = cloud.ec2.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"]
        cloud.image_id = images[0]["ImageId"]
        subnets = cloud.ec2.describe_subnets()["Subnets"]
        cloud.subnets = {subnet["AvailabilityZoneId"]: subnet["SubnetId"] for subnet in subnets}
        yield cloud
    finally:
        server.close()
        BackendDict.reset()
