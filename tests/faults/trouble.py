"""What calls meet: errors of the services and of the network, as a schedule has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cloudtrain.provisioner.errors import (
    AccessError,
    CloudUnreachable,
    PoolUnavailable,
    QuotaExceeded,
    RemoteError,
)
from tests.faults.schedule import Fault

if TYPE_CHECKING:
    from tests.faults.simulation import Simulation

CLOUD = ("prepare", "find_image", "price", "launch", "machines", "terminate", "sweep")
BUCKET = ("get", "put", "list", "download", "upload", "delete")


def refuse_launch(sim: Simulation, fault: Fault, call: str, when: str) -> None:
    if call != "launch" or when != "before":
        return
    pool = sim.cloud.calls[-1][1]
    if fault.what == "all" or fault.what in pool:
        if fault.kind == "quota":
            raise QuotaExceeded("Max spot instance count exceeded", code="MaxSpotInstanceCountExceeded")
        raise PoolUnavailable("no capacity", code="InsufficientInstanceCapacity")


def throttle(sim: Simulation, fault: Fault, call: str, when: str) -> None:
    if call in CLOUD and when == "before":
        number = (sim.calls * 2654435761 + fault.n * 40503) % 1000
        if number < fault.x * 1000:
            raise CloudUnreachable("RequestLimitExceeded")


def outage(sim: Simulation, fault: Fault, call: str, when: str) -> None:
    home = sim.current
    assert home is not None
    wanted = "after" if fault.what == "replies" else "before"
    if when != wanted:
        return
    if call in CLOUD and fault.what in ("cloud", "all", "replies"):
        raise CloudUnreachable("no answer from EC2")
    if call in BUCKET and fault.what in ("bucket", "all", "replies"):
        raise CloudUnreachable("no answer from S3")
    if call in ("run", "read") and fault.what in ("ssh", "all", "replies"):
        raise RemoteError("no route")


def bucket_down(sim: Simulation, fault: Fault, call: str, when: str) -> None:
    if call in BUCKET and when == "before":
        raise CloudUnreachable("S3 answers 503")


def credentials(sim: Simulation, fault: Fault, call: str, when: str) -> None:
    if call in CLOUD + BUCKET and when == "before":
        raise AccessError("ExpiredToken: the credentials have expired")


def lose(fault: Fault, call: str, when: str) -> None:
    if fault.kind == "unknown-code" and when == "before":
        raise PoolUnavailable("MadeUpCode: no", code="MadeUpCode")
    if (fault.kind, when) in (("lost-request", "before"), ("lost-reply", "after")):
        if call in ("run", "read"):
            raise RemoteError("the connection broke")
        raise CloudUnreachable("time-out")


WINDOWS: dict[str, Callable[[Simulation, Fault, str, str], None]] = {
    "no-capacity": refuse_launch,
    "quota": refuse_launch,
    "throttle": throttle,
    "outage": outage,
    "bucket-down": bucket_down,
    "credentials": credentials,
}
