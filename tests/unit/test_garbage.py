"""What `gc` may end: only what is ours for certain, and only where nobody can need it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.provisioner.decide.garbage import (
    YOUNG_S,
    Known,
    job_of,
    judge,
    same_caller,
    stale_content,
)
from cloudtrain.provisioner.decide.stale_data import job_data, jobs_in, manifests, unneeded
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus
from cloudtrain.provisioner.things import Kind, StoredObject, Thing
from tests.records import job, over

ME = "AIDAME"
NOW = 1_800_000_000.0
OLD = NOW - 7200
FINAL = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)


def record(job_id: str = "digits-abc123", status: JobStatus = JobStatus.FAILED, owner: str = ME) -> JobRecord:
    return replace(job(job_id=job_id), status=status, owner=owner, collected=True)


def thing(
    kind: Kind = Kind.MACHINE,
    job_id: str = "digits-abc123",
    owner: str = ME,
    generation: str = "1",
    token: str | None = None,
    made_at: float | None = OLD,
    name: str | None = None,
    thing_id: str = "x-1",
) -> Thing:
    """As a launch (or `prepare`) tags and names it."""
    tags = {"cloudtrain:owner": owner, "cloudtrain:job": job_id}
    if kind in (Kind.MACHINE, Kind.VOLUME, Kind.INTERFACE, Kind.SPOT_REQUEST):
        token = f"ct-{job_id[:32]}-{generation}-0123456789ab" if token is None else token
        tags |= {"cloudtrain:generation": generation, "cloudtrain:token": token}
    named = f"jobs/{job_id}/x" if kind is Kind.UPLOAD else f"cloudtrain-{job_id}" if name is None else name
    if kind is Kind.UPLOAD:
        tags = {}
    return Thing(kind, thing_id, "us-east-1", tuple(tags.items()), name=named, made_at=made_at)


KINDS = list(Kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", FINAL)
def test_what_a_job_that_is_over_left_goes(kind: Kind, status: JobStatus) -> None:
    (verdict,) = judge([thing(kind)], {"digits-abc123": Known(record(status=status))}, ME, NOW)
    assert verdict.end
    assert str(status) in verdict.why


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [s for s in JobStatus if not s.resting])
def test_what_a_live_job_owns_stays(kind: Kind, status: JobStatus) -> None:
    (verdict,) = judge([thing(kind)], {"digits-abc123": Known(record(status=status))}, ME, NOW)
    assert not verdict.end
    assert str(status) in verdict.why


def test_a_stopped_job_owns_no_machine() -> None:
    (verdict,) = judge([thing()], {"digits-abc123": Known(record(status=JobStatus.STOPPED))}, ME, NOW)
    assert verdict.end


def test_a_record_that_can_not_be_read_counts_as_live() -> None:
    (verdict,) = judge([thing()], {"digits-abc123": Known(unreadable="another version")}, ME, NOW)
    assert not verdict.end
    assert "another version" in verdict.why


def test_a_job_that_was_not_looked_up_counts_as_live() -> None:
    assert not judge([thing()], {}, ME, NOW)[0].end


def test_without_a_record_it_is_nobodys_once_it_is_older_than_minutes() -> None:
    nobody = {"digits-abc123": Known()}
    assert judge([thing(made_at=NOW - YOUNG_S - 1)], nobody, ME, NOW)[0].end
    young = judge([thing(made_at=NOW - YOUNG_S + 1)], nobody, ME, NOW)[0]
    assert not young.end
    assert "no record" in young.why


def test_one_young_machine_keeps_its_jobs_group_which_has_no_age() -> None:
    both = [thing(made_at=NOW), thing(Kind.GROUP, made_at=None, thing_id="sg-1")]
    assert [v.end for v in judge(both, {"digits-abc123": Known()}, ME, NOW)] == [False, False]
    assert [v.end for v in judge(both[1:], {"digits-abc123": Known()}, ME, NOW)] == [True]


def test_machines_go_before_what_they_hold() -> None:
    found = [thing(kind, thing_id=str(n)) for n, kind in enumerate(reversed(KINDS))]
    kinds = [v.thing.kind for v in judge(found, {"digits-abc123": Known(record())}, ME, NOW)]
    assert kinds == KINDS


def test_a_record_of_another_owner_keeps_what_has_our_tag() -> None:
    known = {"digits-abc123": Known(record(owner="AIDAOTHER"))}
    assert [v.end for v in judge([thing()], known, ME, NOW)] == [False]
    assert judge([thing(Kind.UPLOAD)], known, ME, NOW) == (), "an upload carries no owner: the record alone tells"


FOREIGN = [
    Thing(Kind.MACHINE, "i-1", "us-east-1"),
    thing(owner="AIDAOTHER"),
    thing(owner=""),
    thing(owner=ME.lower()),
    thing(owner=f"{ME} "),
    thing(job_id=""),
    thing(job_id="Digits-abc123"),
    thing(job_id="-x"),
    thing(job_id="../x"),
    thing(job_id="x" * 65),
    thing(generation=""),
    thing(generation="one"),
    thing(token=""),
    thing(token="ct-other-1-0123456789ab"),
    thing(token="ct-digits-abc123-2-0123456789ab"),  # of another generation than the tag says
    thing(Kind.GROUP, name="cloudtrain-other"),
    thing(Kind.GROUP, name="default"),
    thing(Kind.KEY_PAIR, name="my-key"),
    Thing(Kind.MACHINE, "i-2", "us-east-1", (("Cloudtrain:Owner", ME), ("Cloudtrain:Job", "digits-abc123"))),
    Thing(Kind.VOLUME, "v", "us-east-1", (("owner", ME), ("job", "digits-abc123"), ("Name", "cloudtrain-digits"))),
    Thing(Kind.UPLOAD, "u", "us-east-1", name="backups/jobs/digits-abc123/x"),
    Thing(Kind.UPLOAD, "u", "us-east-1", name="jobs/"),
]


@pytest.mark.parametrize("foreign", FOREIGN)
def test_what_only_looks_like_ours_is_not_even_judged(foreign: Thing) -> None:
    everything = {name: Known(record()) for name in ("digits-abc123", "", "x" * 65, "Digits-abc123", "-x", "../x")}
    assert judge([foreign], everything, ME, NOW) == ()


def test_without_an_owner_nothing_is_ours() -> None:
    assert job_of(thing(owner=""), "") is None


IDS = st.sampled_from(["digits-abc123", "other-1", "x", "", "No"])
OWNERS = st.sampled_from([ME, "AIDAOTHER", "", "aidame"])


@st.composite
def things(draw: st.DrawFn) -> Thing:
    found = thing(
        draw(st.sampled_from(KINDS)),
        draw(IDS),
        draw(OWNERS),
        draw(st.sampled_from(["1", "2", "x", ""])),
        draw(st.sampled_from([None, "", "ct-other-1-1-00"])),
        draw(st.sampled_from([None, OLD, NOW])),
        draw(st.sampled_from([None, "default"])),
        draw(st.text("abc", min_size=1, max_size=3)),
    )
    keep = draw(st.integers(0, len(found.tags)))
    return replace(found, tags=found.tags[:keep] if draw(st.booleans()) else found.tags)


KNOWN = st.one_of(
    st.just(Known()),
    st.just(Known(unreadable="no")),
    st.builds(lambda status, owner: Known(record(status=status, owner=owner)), st.sampled_from(JobStatus), OWNERS),
)


@given(st.lists(things(), max_size=30), st.dictionaries(IDS, KNOWN))
def test_whatever_is_found_only_what_is_ours_and_nobodys_is_ended(found: list[Thing], known: dict[str, Known]) -> None:
    """The property the whole command stands on, written once more and otherwise."""
    for verdict in judge(found, known, ME, NOW):
        if not verdict.end:
            assert verdict.why
            continue
        one, tags = verdict.thing, dict(verdict.thing.tags)
        of = known[verdict.job_id]
        assert not of.unreadable
        if one.kind is Kind.UPLOAD:
            assert of.record is not None
        else:
            assert (tags["cloudtrain:owner"], tags["cloudtrain:job"]) == (ME, verdict.job_id)
        if of.record is None:
            assert one.made_at is None or NOW - one.made_at > YOUNG_S
        else:
            assert of.record.owner == ME
            assert of.record.status in (*FINAL, JobStatus.STOPPED)
        if one.kind in (Kind.GROUP, Kind.KEY_PAIR):
            assert one.name == f"cloudtrain-{verdict.job_id}"


# ---- uploads of file contents


def upload(**changes: object) -> Thing:
    base = Thing(
        Kind.UPLOAD, "u", "us-east-1", name=f"files/{'a' * 64}", made_at=NOW - 90_000, bucket="b", initiator="arn:me"
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_broken_off_uploads_of_contents_go_after_a_day_where_we_began_them() -> None:
    assert [v.end for v in stale_content([upload()], "arn:me", NOW)] == [True]
    for other in (
        upload(initiator="arn:other"),
        upload(initiator=""),
        upload(made_at=NOW - 80_000),
        upload(made_at=None),
        upload(name="files/short"),
        upload(name=f"x/files/{'a' * 64}"),
    ):
        assert stale_content([other], "arn:me", NOW) == ()


def test_sessions_of_one_role_are_one_caller() -> None:
    role = "arn:aws:sts::123456789012:assumed-role/ops"
    assert same_caller(f"{role}/botocore-session-1", f"{role}/botocore-session-2")
    assert not same_caller(f"{role}/x", f"{role}s/x")
    assert not same_caller("", "")
    assert same_caller("arn:aws:iam::1:user/ann", "arn:aws:iam::1:user/ann")


# ---- money


# ---- data


def stored(*keys: str, at: float = OLD - 100_000) -> list[StoredObject]:
    return [StoredObject(key, 10, at) for key in keys]


DATA = ("control/a-1/record.json", "control/a-1/snapshot.tar", "jobs/a-1/checkpoints/x", "mounts/a-1/0.json")


@pytest.mark.parametrize("status", FINAL)
def test_an_ended_jobs_objects_go_the_record_last(status: JobStatus) -> None:
    contents = stored(*DATA)
    assert jobs_in(contents) == ("a-1",)
    (data,) = job_data(contents, {"a-1": Known(record("a-1", status))}, ME)
    assert (data.end, data.size, data.keys[-1]) == (True, 40, "control/a-1/record.json")
    assert set(data.keys) == set(DATA)


def test_what_could_still_be_resumed_goes_only_named_as_such() -> None:
    spent = replace(record("a-1", JobStatus.FAILED), outcome=EndReason.BUDGET, collected=True)
    (data,) = job_data(stored(*DATA), {"a-1": Known(spent)}, ME)
    assert (data.end, data.why) == (True, "ended by a limit, resumable till then")


def ran(status: JobStatus) -> JobRecord:
    return replace(record("a-1", status), attempts=(over(1, 60, EndReason.JOB_FAILED),), collected=False)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (Known(record("a-1", JobStatus.STOPPED)), "can be resumed"),
        *[(Known(record("a-1", status)), str(status)) for status in JobStatus if not status.resting],
        (Known(record("a-1", owner="AIDAOTHER")), "another owner"),
        (Known(unreadable="bad"), "bad"),
        (Known(), "no record"),
        (Known(ran(JobStatus.FAILED)), "never brought home"),
    ],
)
def test_everything_else_keeps_its_data(known: Known, why: str) -> None:
    (data,) = job_data(stored(*DATA), {"a-1": known}, ME)
    assert not data.end
    assert why in data.why


def test_what_lies_elsewhere_in_the_bucket_is_nobodys_business() -> None:
    assert job_data(stored("my/jobs/a-1/x", "notes.txt", "jobs/UPPER/x", "files/x"), {}, ME) == ()


def test_contents_that_a_staying_jobs_mounts_name_stay() -> None:
    contents = stored("mounts/a-1/0.json", "mounts/b-1/0.json", f"files/{'a' * 64}", f"files/{'b' * 64}")
    known = {"a-1": Known(record("a-1")), "b-1": Known(record("b-1", JobStatus.RUNNING))}
    ending = job_data(contents, known, ME)
    assert manifests(contents, ending) == ("mounts/b-1/0.json",)
    assert [item.key for item in unneeded(contents, ["b" * 64], NOW)] == [f"files/{'a' * 64}"]
    young = stored(f"files/{'a' * 64}", at=NOW - 3600)
    assert unneeded(young, [], NOW) == ()
