"""`gc`: what jobs left in an account, found, judged and ended until it is seen gone. From any computer with the
account's credentials: what is live, the records in its buckets say, whoever drives the jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cloudtrain.provisioner.account.setup_plan import bucket_names
from cloudtrain.provisioner.controller import takeover
from cloudtrain.provisioner.controller.loop import REQUEST_ID
from cloudtrain.provisioner.controller.takeover import RecordUnreadable
from cloudtrain.provisioner.decide.garbage import Known, Verdict, job_of, judge, stale_content
from cloudtrain.provisioner.errors import AccessError, CloudUnreachable, NotFound, RegionDenied
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.names import TAG_BUCKET
from cloudtrain.provisioner.ports import Clock, Inventory, ObjectStore
from cloudtrain.provisioner.things import IN_USE, Kind, Thing

WAIT_S = 900.0  # a large machine takes minutes to shut down
STUCK_S = 90.0  # nothing shuts down any more, and nothing goes: what is left was refused
# What a machine that is gone has held may be "in use" for minutes more (cloud-barista/cb-spider#460, 2021-08).
RELEASE_S = 300.0
LOOK_S = 5.0
AT_A_TIME = 8

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scene:
    """Whose things are meant, and where to look for them and for the records of their jobs.

    ``objects`` opens a bucket by name and region. ``buckets``: those that are known beforehand. ``here``: live jobs of
    this computer, which the bucket may not know yet. ``everywhere``: the regions that a bucket of jobs may be in.
    """

    inventory: Inventory
    objects: Callable[[str, str], ObjectStore]
    account: str
    owner: str
    arn: str
    buckets: tuple[str, ...]
    here: Callable[[], Iterable[JobRecord]]
    everywhere: Callable[[], Iterable[str]]
    clock: Clock


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found of the owner's, with a verdict on each; and what could not be looked at, a line each. ``silent``:
    regions that did not answer."""

    verdicts: tuple[Verdict, ...]
    troubles: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

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
    two has a record that says so. ``named``: the person named the regions, so none may be passed over. Else one that is
    closed or does not answer keeps nobody from the others.

    Raises AccessError and CloudUnreachable where a bucket can't be read: then nothing is known of any job.
    """
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        looks = list(pool.map(lambda region: _look(scene, region, named=named), regions))
    things = [thing for found, _, _ in looks for thing in found]
    troubles = [line for _, lines, _ in looks for line in lines]
    silent = tuple(region for region, (_, _, dumb) in zip(regions, looks, strict=True) if dumb)
    buckets = dict.fromkeys(scene.buckets)
    places = {name: scene.inventory.bucket_region(name) for name in buckets}
    for name, region in places.items():
        if region is not None:
            things += scene.inventory.uploads(name, region)
    known = _known(scene, things, places)
    now = scene.clock.now()
    verdicts = judge(things, known, scene.owner, now) + stale_content(things, scene.arn, now)
    return Survey(verdicts, tuple(troubles), silent)


def end(scene: Scene, found: Survey, say: Say) -> tuple[Left, ...]:
    """End what the survey says, and look until each is seen gone; what is left after that, and why. Each look reads the
    records again: what a job has taken up meanwhile stays. A region that is silent keeps nothing elsewhere; and what a
    look can't see is not gone."""
    wanted = {_key(verdict.thing) for verdict in found.ending}
    regions = tuple(sorted({verdict.thing.region for verdict in found.ending}))
    began = changed = scene.clock.now()
    left = {_key(v.thing): Left(v, "not ended yet") for v in found.ending}
    ending = {region: [v.thing for v in found.ending if v.thing.region == region] for region in regions}
    voice = _Voice(say, {_plain(line) for line in found.troubles})
    while left:
        refused: dict[str, str] = {}
        for region in regions:
            refused |= _asked(scene, ending[region], voice)
        scene.clock.sleep(LOOK_S)
        before, left, silent = left, {}, False
        for region in regions:
            seen = _looked(scene, region, voice)
            if seen is None:
                silent = True
                left |= {key: one for key, one in before.items() if one.verdict.thing.region == region}
                continue
            for verdict in seen.verdicts:
                if not verdict.end and _key(verdict.thing) in wanted:
                    say(f"{verdict.thing.thing_id} stays: {verdict.why}")
                    wanted.discard(_key(verdict.thing))
            still = [v for v in seen.ending if _key(v.thing) in wanted and v.thing.region == region]
            ending[region] = [verdict.thing for verdict in still]
            left |= {_key(v.thing): _left(v, refused) for v in still}
        now, goes = scene.clock.now(), any(one.going for one in left.values())
        changed = now if silent or goes or before.keys() != left.keys() else changed
        held = any(one.why.endswith(IN_USE) for one in left.values())
        held = held and not any(one.verdict.thing.kind is Kind.MACHINE for one in left.values())
        if now - changed > (RELEASE_S if held else STUCK_S) or now - began > WAIT_S:
            break
    return tuple(left.values())


@dataclass(frozen=True, slots=True)
class _Voice:
    """Says each trouble once. ``known``: those that were there before anything was ended."""

    say: Say
    known: set[str]
    told: set[str] = field(default_factory=set)

    def trouble(self, text: str) -> None:
        if _plain(text) not in self.told:
            self.told.add(_plain(text))
            self.say(text)


def _plain(trouble: str) -> str:
    return REQUEST_ID.sub("", trouble)


def _asked(scene: Scene, things: list[Thing], voice: _Voice) -> dict[str, str]:
    try:
        return dict(scene.inventory.end(things))
    except CloudUnreachable as error:
        voice.trouble(str(error))
        return {}


def _looked(scene: Scene, region: str, voice: _Voice) -> Survey | None:
    """The region as it is now; None where that, or a part of it, can't be seen."""
    try:
        seen = survey(scene, (region,), named=True)
    except CloudUnreachable as error:
        voice.trouble(str(error))
        return None
    new = [line for line in seen.troubles if _plain(line) not in voice.known]
    for line in new:
        voice.trouble(line)
    return None if new else seen


def _left(verdict: Verdict, refused: Mapping[str, str]) -> Left:
    going = verdict.thing.state == "shutting-down"
    why = "it is shutting down" if going else refused.get(verdict.thing.thing_id, "the cloud still shows it")
    return Left(verdict, why, going)


def _key(thing: Thing) -> tuple[Kind, str, str]:
    return thing.kind, thing.region, thing.thing_id


def _look(scene: Scene, region: str, *, named: bool) -> tuple[tuple[Thing, ...], tuple[str, ...], bool]:
    """What is in a region, what can't be seen there, and whether it does not answer."""
    try:
        return *scene.inventory.look(region), False
    except (RegionDenied, CloudUnreachable) as error:
        if named:
            raise
        return (), (f"{region} was not looked at: {error}",), isinstance(error, CloudUnreachable)


def _known(scene: Scene, things: list[Thing], places: dict[str, str | None]) -> dict[str, Known]:
    """What is known of each job that something belongs to. A job that no bucket of ``places``, nor the one that its
    machine names, has is looked for in the account's buckets of every region before it counts as nobody's, whichever
    regions are looked at."""
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
        names = {name for region in scene.everywhere() for name in bucket_names(scene.account, region)}
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
