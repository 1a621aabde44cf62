"""`gc` from survey to end, on fakes with time of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudtrain.provisioner.codec import encode
from cloudtrain.provisioner.errors import AccessError, CloudUnreachable, RegionDenied
from cloudtrain.provisioner.launch import clearing
from cloudtrain.provisioner.launch.clearing import Scene, Survey, end, survey
from cloudtrain.provisioner.launch.clearing_data import delete, hoard
from cloudtrain.provisioner.model import JobRecord, JobStatus
from cloudtrain.provisioner.names import record_key
from cloudtrain.provisioner.things import Kind, Thing
from tests.fake_inventory import FakeInventory
from tests.fakes import FakeClock, FakeObjectStore
from tests.records import job

OWNER = "me"
REGION = "us-east-1"
HOME = "cloudtrain-123456789012-us-east-1-an"


class Account:
    """An account with its usual bucket, jobs, and what they left."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.inventory = FakeInventory(self.clock, OWNER)
        self.objects = FakeObjectStore()
        self.inventory.buckets[HOME] = (REGION, self.objects)
        self.here: list[JobRecord] = []
        self.said: list[str] = []

    @property
    def scene(self) -> Scene:
        return Scene(
            inventory=self.inventory,
            objects=lambda name, region: self.inventory.buckets[name][1],
            account="123456789012",
            owner=OWNER,
            arn="arn:aws:iam::123456789012:user/me",
            buckets=(HOME,),
            here=lambda: self.here,
            everywhere=self.inventory.regions,
            clock=self.clock,
        )

    def put(self, job_id: str, status: JobStatus, *, bucket: str = HOME, **changes: object) -> JobRecord:
        record = replace(job(job_id=job_id), status=status, owner=OWNER, collected=True, **changes)  # type: ignore[arg-type]
        self.inventory.buckets[bucket][1].objects[record_key(job_id)] = encode(record)
        return record

    def leave(self, job_id: str, *, bucket: str = "", region: str = REGION, age_s: float = 7200.0) -> None:
        """A machine and its group."""
        tags = {"cloudtrain:owner": OWNER, "cloudtrain:job": job_id}
        launched = tags | {"cloudtrain:generation": "1", "cloudtrain:token": f"ct-{job_id}-1-00"}
        if bucket:
            launched["cloudtrain:bucket"] = bucket
        name = f"cloudtrain-{job_id}"
        made_at = self.clock.now() - age_s
        self.inventory.things += [
            Thing(Kind.GROUP, f"sg-{job_id}", region, tuple(tags.items()), name=name),
            Thing(Kind.MACHINE, f"i-{job_id}", region, tuple(launched.items()), state="running", made_at=made_at),
        ]

    def look(self, *regions: str) -> Survey:
        return survey(self.scene, regions or (REGION,))

    def gc(self) -> tuple[clearing.Left, ...]:
        return end(self.scene, self.look(), self.said.append)


@pytest.fixture
def account() -> Account:
    return Account()


def ending(found: Survey) -> set[str]:
    return {v.thing.thing_id for v in found.ending}


def test_what_is_over_goes_and_what_lives_stays(account: Account) -> None:
    account.put("a-1", JobStatus.FAILED)
    account.put("b-1", JobStatus.RUNNING)
    account.leave("a-1")
    account.leave("b-1")
    assert ending(account.look()) == {"i-a-1", "sg-a-1"}
    assert account.gc() == ()
    assert {t.thing_id for t in account.inventory.things} == {"i-b-1", "sg-b-1"}
    assert "i-b-1" not in account.inventory.asked


def test_a_machine_is_asked_for_until_it_is_seen_gone_and_its_group_follows(account: Account) -> None:
    account.put("a-1", JobStatus.FAILED)
    account.leave("a-1")
    begin = account.clock.now()
    assert account.gc() == ()
    assert account.clock.now() - begin >= account.inventory.shutdown_s
    assert account.inventory.asked.count("sg-a-1") > 1


def test_a_job_in_the_bucket_that_its_machine_names_is_found_there(account: Account) -> None:
    account.inventory.buckets["own"] = ("eu-west-1", FakeObjectStore())
    account.put("a-1", JobStatus.RUNNING, bucket="own")
    account.leave("a-1", bucket="own")
    assert ending(account.look()) == set()
    account.put("a-1", JobStatus.FAILED, bucket="own")
    assert ending(account.look()) == {"i-a-1", "sg-a-1"}


def test_a_job_in_the_accounts_bucket_of_another_region_is_found_there(account: Account) -> None:
    other = "cloudtrain-123456789012-us-west-2-an"
    account.inventory.buckets[other] = ("us-west-2", FakeObjectStore())
    account.put("a-1", JobStatus.RUNNING, bucket=other)
    account.leave("a-1")
    for regions in ((REGION, "us-west-2"), (REGION,)):  # also where only the first is looked at
        assert ending(account.look(*regions)) == set()


def test_a_bucket_that_can_not_be_read_ends_nothing(account: Account) -> None:
    account.leave("a-1", bucket="theirs")
    for denied in ("theirs", HOME):
        account.inventory.denied = {denied}
        with pytest.raises(AccessError):
            account.look()
    account.inventory.denied = set()
    account.objects.faults.add("get", CloudUnreachable("no answer"), times=9)
    with pytest.raises(CloudUnreachable):
        account.look()
    assert account.inventory.asked == []


def test_a_bucket_that_is_gone_has_no_records(account: Account) -> None:
    """After `setup --destroy` nobody can have one."""
    del account.inventory.buckets[HOME]
    account.leave("a-1", bucket=HOME)
    assert ending(account.look()) == {"i-a-1", "sg-a-1"}
    account.leave("b-1", bucket=HOME, age_s=60)
    assert ending(account.look()) == {"i-a-1", "sg-a-1"}


def test_a_damaged_record_counts_as_live(account: Account) -> None:
    account.objects.objects[record_key("a-1")] = b"{"
    account.leave("a-1")
    found = account.look()
    assert ending(found) == set()
    assert all("can't be read" in v.why for v in found.verdicts)


def test_a_job_that_only_this_computer_knows_yet_is_live(account: Account) -> None:
    account.here = [replace(job(job_id="a-1"), owner=OWNER, status=JobStatus.PROVISIONING)]
    account.leave("a-1")
    assert ending(account.look()) == set()


def test_an_old_copy_here_says_nothing_against_the_bucket(account: Account) -> None:
    record = account.put("a-1", JobStatus.FAILED, revision=9)
    account.here = [replace(record, status=JobStatus.RUNNING, revision=3)]
    account.leave("a-1")
    assert ending(account.look()) == {"i-a-1", "sg-a-1"}
    account.here = [replace(record, status=JobStatus.RUNNING, revision=12)]  # its bucket did not answer since
    assert ending(account.look()) == set()


def test_a_job_that_goes_on_meanwhile_keeps_what_is_left(account: Account) -> None:
    account.put("a-1", JobStatus.STOPPED)
    account.leave("a-1")
    found = account.look()
    account.put("a-1", JobStatus.PROVISIONING)
    account.inventory.refuse["i-a-1"] = "throttled"
    left = end(account.scene, found, account.said.append)
    assert left == ()
    assert any("i-a-1 stays: its job is PROVISIONING" in line for line in account.said)
    assert account.inventory.asked.count("i-a-1") == 1


def test_what_is_refused_is_left_with_the_clouds_reason_and_nothing_is_claimed(account: Account) -> None:
    account.put("a-1", JobStatus.FAILED)
    account.put("b-1", JobStatus.FAILED)
    account.leave("a-1")
    account.leave("b-1")
    account.inventory.refuse["i-a-1"] = "i-a-1: OperationNotPermitted: protected"
    begin = account.clock.now()
    left = {one.verdict.thing.thing_id: one for one in account.gc()}
    assert set(left) == {"i-a-1", "sg-a-1"}
    assert "OperationNotPermitted" in left["i-a-1"].why
    assert not left["i-a-1"].going
    assert account.clock.now() - begin < 300, "nothing changes any more: no use to wait"


def test_what_a_machine_held_is_waited_for_some_minutes_after_it_is_gone(account: Account) -> None:
    account.inventory.release_s = 240.0
    account.put("a-1", JobStatus.FAILED)
    account.leave("a-1")
    assert account.gc() == ()
    account.inventory.release_s = 1e9
    account.put("b-1", JobStatus.FAILED)
    account.leave("b-1")
    begin = account.clock.now()
    (group,) = account.gc()
    assert (group.why, group.going) == ("sg-b-1 is in use", False)
    assert account.clock.now() - begin < 400


def test_a_machine_that_shuts_down_for_ever_is_left_as_such(account: Account) -> None:
    account.inventory.shutdown_s = 1e9
    account.put("a-1", JobStatus.FAILED)
    account.leave("a-1")
    left = {one.verdict.thing.thing_id: one for one in account.gc()}
    assert left["i-a-1"].going
    assert account.clock.now() < 1_900_000_000


def test_a_region_that_is_closed_is_said_and_one_that_was_named_is_refused(account: Account) -> None:
    account.put("a-1", JobStatus.FAILED)
    account.leave("a-1")
    account.inventory.denied = {"us-west-2"}
    found = account.look(REGION, "us-west-2")
    assert ending(found) == {"i-a-1", "sg-a-1"}
    assert len(found.troubles) == 1
    with pytest.raises(RegionDenied):
        survey(account.scene, ("us-west-2",), named=True)


def test_outages_while_it_ends_are_waited_out(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    account.put("a-1", JobStatus.FAILED)
    account.leave("a-1")
    found, look, fails = account.look(), account.inventory.look, [3]

    def sometimes(region: str) -> object:
        if fails[0]:
            fails[0] -= 1
            raise CloudUnreachable("throttled")
        return look(region)

    monkeypatch.setattr(account.inventory, "look", sometimes)
    assert end(account.scene, found, account.said.append) == ()
    assert account.said == ["throttled"]


def test_a_silent_region_keeps_nothing_elsewhere_and_is_not_called_empty(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.put("a-1", JobStatus.FAILED)
    account.leave("a-1")
    account.put("b-1", JobStatus.FAILED)
    account.leave("b-1", region="us-west-2")
    both, look, ask = account.look(REGION, "us-west-2"), account.inventory.look, account.inventory.end

    def silent(region: str) -> object:
        if region == REGION:
            raise CloudUnreachable("no answer")
        return look(region)

    def asked(things: list[Thing]) -> object:
        if any(thing.region == REGION for thing in things):
            raise CloudUnreachable("no answer")
        return ask(things)

    monkeypatch.setattr(account.inventory, "look", silent)
    monkeypatch.setattr(account.inventory, "end", asked)
    found = account.look(REGION, "us-west-2")
    assert {v.thing.region for v in found.ending} == {"us-west-2"}
    assert (found.silent, len(found.troubles)) == ((REGION,), 1)
    with pytest.raises(CloudUnreachable):
        survey(account.scene, (REGION,), named=True)
    left = end(account.scene, both, account.said.append)
    assert {one.verdict.thing.region for one in left} == {REGION}
    assert account.said == ["no answer"]
    assert {t.region for t in account.inventory.things} == {REGION}


def test_what_can_not_be_seen_any_more_is_not_gone(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    account.put("a-1", JobStatus.FAILED)
    account.leave("a-1")
    found, look = account.look(), account.inventory.look

    def blind(region: str) -> object:
        things, _ = look(region)
        return tuple(t for t in things if t.kind is not Kind.GROUP), ("groups: UnauthorizedOperation (request 1)",)

    monkeypatch.setattr(account.inventory, "look", blind)
    assert {one.verdict.thing.kind for one in end(account.scene, found, account.said.append)} >= {Kind.GROUP}
    assert account.said == ["groups: UnauthorizedOperation (request 1)"]


# ---- data


def test_data_of_ended_jobs_goes_and_contents_that_others_need_stay(account: Account) -> None:
    mine, shared = "a" * 64, "b" * 64
    account.put("a-1", JobStatus.SUCCEEDED)
    account.put("b-1", JobStatus.STOPPED)
    objects = account.objects.objects
    for job_id, named in (("a-1", (mine, shared)), ("b-1", (shared,))):
        rows = ",".join(f'{{"path": "x", "sha256": "{name}"}}' for name in named)
        objects[f"mounts/{job_id}/0.json"] = f'{{"files": [{rows}]}}'.encode()
        objects[f"jobs/{job_id}/checkpoints/g0001-1/w"] = b"weights"
    objects[f"files/{mine}"] = objects[f"files/{shared}"] = b"data"
    objects["notes.txt"] = b"the person's own"
    found = hoard(account.scene, HOME, REGION)
    assert [data.job_id for data in found.ending] == ["a-1"]
    assert found.count == 4
    before = set(objects)
    assert delete(account.scene, found, account.said.append) == ()
    assert before - set(objects) == {
        record_key("a-1"),
        "mounts/a-1/0.json",
        "jobs/a-1/checkpoints/g0001-1/w",
        f"files/{mine}",
    }


def test_a_job_that_goes_on_before_it_is_deleted_keeps_its_data(account: Account) -> None:
    account.put("a-1", JobStatus.SUCCEEDED)
    account.objects.objects["jobs/a-1/x"] = b"1"
    found = hoard(account.scene, HOME, REGION)
    account.put("a-1", JobStatus.RUNNING)
    assert delete(account.scene, found, account.said.append) == tuple(sorted((record_key("a-1"), "jobs/a-1/x")))
    assert "a-1 stays: its job is RUNNING" in account.said


def test_a_damaged_manifest_keeps_all_contents(account: Account) -> None:
    account.put("b-1", JobStatus.RUNNING)
    account.objects.objects["mounts/b-1/0.json"] = b"{"
    account.objects.objects[f"files/{'a' * 64}"] = b"data"
    found = hoard(account.scene, HOME, REGION)
    assert found.files == ()
    assert "mounts/b-1/0.json" in found.trouble


def test_a_launch_that_is_sending_contents_keeps_all_of_them(account: Account) -> None:
    """It counts on what is in the bucket already, and its manifest comes last."""
    account.objects.objects["mounts/new-1/begun.json"] = b"{}"
    account.objects.objects[f"files/{'a' * 64}"] = b"data"
    account.inventory.modified_at = account.clock.now() - 3600
    found = hoard(account.scene, HOME, REGION)
    assert found.files == ()
    assert "job new-1" in found.trouble
    account.inventory.modified_at = account.clock.now() - 90_000  # it was broken off
    assert len(hoard(account.scene, HOME, REGION).files) == 1


def test_a_deletion_that_breaks_off_is_found_again(account: Account) -> None:
    account.put("a-1", JobStatus.SUCCEEDED)
    account.objects.objects["jobs/a-1/x"] = b"1"
    found = hoard(account.scene, HOME, REGION)
    account.objects.faults.add("delete", CloudUnreachable("gone"), when="after")
    with pytest.raises(CloudUnreachable):
        delete(account.scene, found, account.said.append)
    again = hoard(account.scene, HOME, REGION)
    assert [data.job_id for data in again.ending] == ["a-1"]
    assert delete(account.scene, again, account.said.append) == ()
    assert account.objects.objects == {}
