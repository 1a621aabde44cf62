"""From a job file to a stored job: check, plan, snapshot; nothing is spent before ``submit``."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.pricing import catalog
from cloudtrain.pricing.extras import pinned
from cloudtrain.provisioner.adapters.clock import SystemClock
from cloudtrain.provisioner.adapters.store import SqliteStore
from cloudtrain.provisioner.controller.folders import hold, let_go
from cloudtrain.provisioner.controller.job_secrets import keep_secrets
from cloudtrain.provisioner.controller.process import ensure, renew
from cloudtrain.provisioner.decide import allowance
from cloudtrain.provisioner.decide.limits import limits_of
from cloudtrain.provisioner.errors import CloudtrainError, Conflict, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.jobfile import overrides
from cloudtrain.provisioner.jobfile import reader as jobfile
from cloudtrain.provisioner.jobfile.overrides import Overrides
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.plan import Plan, make_plan
from cloudtrain.provisioner.shipping.snapshot import Snapshot, take
from cloudtrain.provisioner.spec import JobSpec
from cloudtrain.trainer.contract import Mount

PROCESS_TABLE = Path("/proc/self/stat")


if TYPE_CHECKING:
    from cloudtrain.provisioner.launch.access import Access


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that could be launched: what it is, and where it would run."""

    job_id: str
    spec: JobSpec
    plan: Plan
    cloud: str
    results: Path


def prepare(path: Path, *, cloud: str, into: Path | None = None, flags: Overrides | None = None) -> Prepared:
    """Read and check the job file, as the flags change it, and plan it. Touches no cloud. Raises UsageError,
    NoCapacity."""
    prices = catalog.load()
    spec = overrides.apply(jobfile.load(path), flags or Overrides(), prices)
    plan = make_plan(spec, prices, cloud=cloud)
    job_id = f"{spec.name}-{secrets.token_hex(3)}"
    results = into if into is not None else Path("results") / job_id
    prepared = Prepared(job_id, spec, plan, cloud, results.absolute())
    _require_enough(prepared)
    return prepared


def _require_enough(prepared: Prepared) -> None:
    """Raise UsageError where budget or max_run would be passed before a first checkpoint, whichever pool is taken."""
    offerings, now = prepared.plan.offerings, SystemClock().now()
    draft = JobRecord(
        job_id=prepared.job_id,
        spec=prepared.spec,
        owner="",
        results=str(prepared.results),
        driver="",
        cloud=prepared.cloud,
        cloud_id=None,
        bucket="",
        region=offerings[0].pool.region,
        offerings=offerings,
        created_at=now,
        rates=pinned(offerings, offerings[0].pool.region, []),
    )
    limits = limits_of(prepared.cloud)
    if not allowance.fitting(draft, now, limits):
        raise UsageError(f"{prepared.spec.name}: {allowance.too_little(draft, now, limits)}")


def refuse_if_live(name: str, home: Home) -> None:
    """Raise UsageError where a live job has this name: launching it again would pay twice."""
    for stored in SqliteStore(home.db).list(live_only=True):
        if stored.record.spec.name == name:
            job, status = stored.record.job_id, stored.record.status
            if stored.record.driver != home.id:
                raise UsageError(
                    f"job {job} named {name!r} is driven from another computer: `cloudtrain adopt {job}` takes it "
                    "over, or, once it is over, brings it home; --name gives this one another"
                )
            go_on = f"go on with it: `cloudtrain resume {job}`" if stored.resting else f"`cloudtrain logs -f {job}`"
            raise UsageError(
                f"job {job} named {name!r} is {status}: {go_on}, or end it first: `cloudtrain down {job}`; "
                "--name gives this one another"
            )


def snapshot(prepared: Prepared, *, home: Home) -> Snapshot:
    """Fix what every attempt will run. Editing the workdir afterwards changes nothing. Raises UsageError."""
    workdir = Path(prepared.spec.workdir) if prepared.spec.workdir else None
    out = ours(prepared, home)
    if workdir is not None:
        out += _covered(workdir, prepared.spec)
    job_dir = home.job_dir(prepared.job_id)
    hold(job_dir)
    return take(workdir, job_dir, leave_out=out)


def _covered(workdir: Path, spec: JobSpec) -> list[Path]:
    """What ``file_mounts`` put something in the place of. Raises UsageError where a file stands in the way."""
    targets = [m.target for m in spec.file_mounts if not m.target.startswith(("/", "~/"))]
    for target in targets:
        path = workdir / target
        for place in (path, *path.parents[: len(Path(target).parts) - 1]):
            if place.is_symlink() or (place != path and place.is_file()):
                what = "a link" if place.is_symlink() else "a file"
                raise UsageError(f"file_mounts {target}: {place} is {what} of the workdir; choose another target")
    return [workdir / target for target in targets]


def ours(prepared: Prepared, home: Home) -> list[Path]:
    """What never travels: our own state, and results of this and earlier jobs."""
    brought_home = [Path(stored.record.results) for stored in SqliteStore(home.db).list()]
    return [home.root, home.local_home, prepared.results, *brought_home]


def submit(prepared: Prepared, shot: Snapshot, access: Access, mounts: tuple[Mount, ...] = (), *, home: Home) -> str:
    """Store the job and see that a controller drives it; returns the job's id. From here on it goes on by itself."""
    entry = access.entry
    record = JobRecord(
        job_id=prepared.job_id,
        spec=prepared.spec,
        owner=entry.identity.owner,
        results=str(prepared.results),
        driver=home.id,
        cloud=entry.cloud,
        cloud_id=entry.cloud_id,
        bucket=access.bucket,
        region=entry.region,
        offerings=prepared.plan.offerings,
        created_at=SystemClock().now(),
        snapshot_sha256=shot.sha256,
        mounts=mounts,
        on_demand_usd_per_hour=prepared.plan.on_demand_usd_per_hour,
        rates=pinned(prepared.plan.offerings, entry.region, [mount.region for mount in mounts if mount.region]),
    )
    keep_secrets(prepared.spec, os.environ, home.job_dir(prepared.job_id))
    try:
        SqliteStore(home.db).add(record)
    except Conflict as error:
        raise UsageError(str(error)) from error
    let_go(home.job_dir(prepared.job_id))
    if entry.cloud == "aws":
        renew(home)
    ensure(home)
    return prepared.job_id


def warm(home: Home, cloud: str) -> None:
    """Start what ``submit`` will need, without waiting: it takes a second that planning can fill."""
    if cloud == "local":
        ensure(home)


def require_local_extra() -> None:
    """Raise where the embedded cloud's packages, or the process table that its hosts read, are missing."""
    import importlib.util  # noqa: PLC0415 - only asked on --cloud local

    if not PROCESS_TABLE.exists():
        raise CloudtrainError(f"--cloud local needs Linux, whose {PROCESS_TABLE} it reads; run it in a virtual machine")
    missing = [name for name in ("moto", "flask", "psutil") if importlib.util.find_spec(name) is None]
    if missing:
        raise CloudtrainError(f"--cloud local needs {', '.join(missing)}: pip install 'cloudtrain[local]'")
