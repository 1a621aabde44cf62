"""Job records for tests, as small as they can be."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from cloudtrain.pricing.model import CapacityType, InstanceType, Money, Offering, Pool
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, Phase, PricePoint
from cloudtrain.provisioner.spec import JobSpec, Resources

T4 = InstanceType("g4dn.xlarge", "T4", 1, 16, 4, 16, "x86_64", 125, "test", date(2026, 7, 20))


def offering(zone: str, price: str, capacity_type: CapacityType = CapacityType.SPOT) -> Offering:
    """A T4 in a zone of us-east-1."""
    pool = Pool("aws", "us-east-1", zone, "g4dn.xlarge", capacity_type)
    return Offering(pool, T4, Money(Decimal(price)), "test", date(2026, 7, 20))


OFFERINGS = (offering("use1-az1", "0.15"), offering("use1-az2", "0.16"), offering("use1-az4", "0.17"))


def job(
    *attempts: Attempt, job_id: str = "digits-abc123", name: str = "digits", created_at: float = 1_800_000_000.0
) -> JobRecord:
    """A job that wants one T4 on spot."""
    return JobRecord(
        job_id=job_id,
        spec=JobSpec(name=name, run="python train.py", resources=(Resources(accelerators="T4:1", use_spot=True),)),
        owner="me",
        results="/nowhere/results",
        driver="home",
        cloud="aws",
        cloud_id=None,
        bucket="bucket",
        region="us-east-1",
        offerings=OFFERINGS,
        created_at=created_at,
        generation=len(attempts),
        attempts=attempts,
        on_demand_usd_per_hour=Decimal("0.526"),
    )


def over(
    generation: int,
    seconds: float,
    reason: EndReason,
    *,
    steps: tuple[int, int] = (0, 0),
    price: str = "0.36",
    capacity_type: CapacityType = CapacityType.SPOT,
    by_cloud: bool = False,
) -> Attempt:
    """An ended attempt that ran for some seconds and trained from one step to another."""
    begin = 1_800_000_000.0
    return Attempt(
        generation=generation,
        pool=offering(f"use1-az{generation}", price, capacity_type).pool,
        client_token=f"ct-{generation}",
        phase=Phase.ENDED,
        claimed_at=begin,
        prices=(PricePoint(begin, Decimal(price)),),
        running_at=begin,
        started_at=begin,
        ended_at=begin + seconds,
        end_reason=reason,
        ended_by_cloud=by_cloud,
        start_step=steps[0],
        last_step=steps[1],
        run_seconds=seconds,
    )
