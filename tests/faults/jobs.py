"""The job that every run is about."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from cloudtrain.pricing.model import CapacityType, Offering
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.spec import Interval, JobSpec, Resources
from tests.faults.schedule import Schedule
from tests.records import job, offering

JOB_ID = "digits-abc123"
SECRET_NAME = "API_KEY"
SECRET = "canary-5ecret-value"


def _elsewhere(zone: str, price: str) -> Offering:
    made = offering(zone, price)
    return replace(made, pool=replace(made.pool, region="eu-west-1"))


OFFERINGS = (
    offering("use1-az1", "0.15"),
    offering("use1-az2", "0.16"),
    _elsewhere("euw1-az1", "0.18"),
    offering("use1-az1", "0.53", CapacityType.ON_DEMAND),
)


def first_record(schedule: Schedule, now: float) -> JobRecord:
    """The record as ``launch`` stores it."""
    spec = JobSpec(
        name="digits",
        run="python train.py",
        resources=(Resources(accelerators="T4:1", use_spot=True),),
        secrets=(SECRET_NAME,),
        checkpoint_interval=Interval(steps=schedule.interval),
        max_run_s=schedule.max_run_s,
        budget_usd=None if schedule.budget_usd is None else Decimal(schedule.budget_usd),
    )
    return replace(job(created_at=now), spec=spec, offerings=OFFERINGS)
