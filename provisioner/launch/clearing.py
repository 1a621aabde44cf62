"""`gc`: what jobs left in an account, found, judged and ended until it is seen gone. From any computer with the
account's credentials: what is live, the records in its buckets say, whoever drives the jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cloudtrain.provisioner.account.setup_plan import bucket_names
from cloudtrain.provisioner.controller import takeover
from cloudtrain.provisioner.controller.takeover import RecordUnreadable
from cloudtrain.provisioner.decide.garbage import Known, Verdict, job_of, judge, stale_content
from cloudtrain.provisioner.errors import AccessError, CloudUnreachable, NotFound, RegionDenied
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.names import TAG_BUCKET
from cloudtrain.provisioner.ports import Clock, Inventory, ObjectStore
from cloudtrain.provisioner.things import Kind, Thing

WAIT_S = 900.0  # a large machine takes minutes to shut down
STUCK_S = 90.0  # nothing shuts down any more, and nothing goes: what is left was refused
LOOK_S = 5.0
AT_A_TIME = 8

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scene:
    """Whose things are meant, and where to look for them and for the records of their jobs.

    ``objects`` opens a bucket by name and region. ``buckets``: those that are known beforehand. ``here``: live jobs of
    this computer, which the bucket may not know yet.
    """

    inventory: Inventory
    objects: Callable[[str, str], ObjectStore]
    account: str
    owner: str
    arn: str
    buckets: tuple[str, ...]
    here: Callable[[], Iterable[JobRecord]]
    clock: Clock


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found of the owner's, with a verdict on each; and what could not be looked at, a line each."""

    verdicts: tuple[Verdict, ...]
    troubles: tuple[str, ...] = ()

    @property
    def ending(self) -> tuple[Verdict, ...]:
        """What is to end."""
        return tuple(verdict for verdict in self.verdicts if verdict.end)


@dataclass(frozen=True, slots=True)
class Left:
    """A thing that is still there, and why. ``going``: the cloud has said that it shuts down."""

    verdict: Verdict
    why: str
    going: bool = False


def survey(scene: Scene, regions: tuple[str, ...], *, named: bool = False) -> Survey:
    """Look for the owner's things in the regions, then, not before, read the records: what was launched between the
    two has a record that says so. ``named``: the person named the regions, so none may be passed over.

    Raises AccessError and CloudUnreachable where a bucket can't be read: then nothing is known of any job.
    """
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        looks = list(pool.map(lambda region: _look(scene, region, named=named), regions))
    things = [thing for found, _ in looks for thing in found]
    troubles = [line for _, lines in looks for line in lines]
    buckets = dict.fromkeys(scene.buckets)
    places = {name: scene.inventory.bucket_region(name) for name in buckets}
    for name, region in places.items():
        if region is not None:
            things += scene.inventory.uploads(name, region)
    known = _known(scene, things, places, regions)
    now = scene.clock.now()
    verdicts = judge(things, known, scene.owner, now) + stale_content(things, scene.arn, now)
    return Survey(verdicts, tuple(troubles))


def end(scene: Scene, found: Survey, say: Say) -> tuple[Left, ...]:
    """End what the survey says, and look until each is seen gone; what is left after that, and why. Each look reads the
    records again: what a job has taken up meanwhile stays."""
    wanted = {_key(verdict.thing) for verdict in found.ending}
    regions = tuple(sorted({verdict.thing.region for verdict in found.ending}))
    began = changed = scene.clock.now()
    left, ending = {_key(v.thing): Left(v, "not ended yet") for v in found.ending}, found.ending
    trouble = ""
    while left:
        try:
            refused = dict(scene.inventory.end([verdict.thing for verdict in ending]))
            scene.clock.sleep(LOOK_S)
            seen = survey(scene, regions, named=True)
        except CloudUnreachable as error:
            if trouble != str(error):
                say(f"{error}")
            trouble = str(error)
            if scene.clock.now() - began > WAIT_S:
                break
            scene.clock.sleep(LOOK_S)
            continue
        ending = tuple(verdict for verdict in seen.ending if _key(verdict.thing) in wanted)
        for verdict in seen.verdicts:
            if not verdict.end and _key(verdict.thing) in wanted:
                say(f"{verdict.thing.thing_id} stays: {verdict.why}")
                wanted.discard(_key(verdict.thing))
        before, left = left, {_key(v.thing): _left(v, refused) for v in ending}
        now = scene.clock.now()
        changed = now if before.keys() != left.keys() or any(one.going for one in left.values()) else changed
        if now - changed > STUCK_S or now - began > WAIT_S:
            break
    return tuple(left.values())


def _left(verdict: Verdict, refused: Mapping[str, str]) -> Left:
    going = verdict.thing.state == "shutting-down"
    why = "it is shutting down" if going else refused.get(verdict.thing.thing_id, "the cloud still shows it")
    return Left(verdict, why, going)


def _key(thing: Thing) -> tuple[Kind, str, str]:
    return thing.kind, thing.region, thing.thing_id


def _look(scene: Scene, region: str, *, named: bool) -> tuple[tuple[Thing, ...], tuple[str, ...]]:
    try:
        return scene.inventory.look(region)
    except RegionDenied as error:
        if named:
            raise
        return (), (f"{region} was not looked at: {error}",)


def _known(
    scene: Scene, things: list[Thing], places: dict[str, str | None], regions: tuple[str, ...]
) -> dict[str, Known]:
    """What is known of each job that something belongs to. A job that no bucket of ``places``, nor the one that its
    machine names, has is looked for in the account's buckets of all ``regions`` before it counts as nobody's."""
    jobs: dict[str, set[str]] = {}
    for thing in things:
        job_id = job_of(thing, scene.owner)
        if job_id is not None:
            jobs.setdefault(job_id, set()).update(filter(None, (thing.tag(TAG_BUCKET),)))
    here = {record.job_id: record for record in scene.here()}
    for name in sorted(set().union(*jobs.values()) - places.keys()):
        places[name] = scene.inventory.bucket_region(name)
    known = _read(scene, jobs, places)
    missing = [job_id for job_id, one in known.items() if one == Known() and not jobs[job_id] and job_id not in here]
    if missing:
        names = {name for region in regions for name in bucket_names(scene.account, region)}
        elsewhere = {name: _perhaps(scene, name) for name in sorted(names - places.keys())}
        known |= _read(scene, missing, elsewhere)
    return {job_id: _newer(one, here.get(job_id)) for job_id, one in known.items()}


def _perhaps(scene: Scene, name: str) -> str | None:
    """Where one of the account's usual names is. Anybody may have taken one: another account's bucket is none of ours,
    and can't be told from one that we may not look at, which `setup` would not have made."""
    try:
        return scene.inventory.bucket_region(name)
    except AccessError:
        if name.endswith("-an"):  # nobody else can have that one
            raise
        return None


def _read(scene: Scene, jobs: Iterable[str], places: Mapping[str, str | None]) -> dict[str, Known]:
    return records([scene.objects(name, region) for name, region in places.items() if region is not None], jobs)


def records(stores: Sequence[ObjectStore], job_ids: Iterable[str]) -> dict[str, Known]:
    """What the buckets say of each job: the first that has a record of it. Raises AccessError, CloudUnreachable."""

    def read(job_id: str) -> tuple[str, Known]:
        for store in stores:
            try:
                return job_id, Known(takeover.look(store, job_id).record)
            except NotFound:
                continue
            except RecordUnreadable as error:
                return job_id, Known(unreadable=str(error))
        return job_id, Known()

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return dict(pool.map(read, job_ids))


def _newer(known: Known, here: JobRecord | None) -> Known:
    """The bucket's copy, or this computer's where that is newer: a bucket that did not answer lags."""
    if known.unreadable or here is None:
        return known
    theirs = known.record
    if theirs is None or (here.revision > theirs.revision and here.driver == theirs.driver):
        return Known(here if theirs is not None or not here.status.resting else None)
    return known


def live_here(records: Iterable[JobRecord], cloud: str, cloud_id: str | None) -> tuple[JobRecord, ...]:
    """Those of this computer's jobs that are in the cloud that is meant and were not given away."""
    return tuple(
        record
        for record in records
        if record.cloud == cloud and record.cloud_id == cloud_id and record.let_go_at is None
    )
