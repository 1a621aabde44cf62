"""`cloudtrain gc`: lists with prices, asks, ends. What it may end: tests/unit/test_garbage.py and test_clearing.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import click
import pytest

from cloudtrain.pricing.model import CapacityType, Pool
from cloudtrain.provisioner.account.facts import Identity
from cloudtrain.provisioner.cli import gc
from cloudtrain.provisioner.cli.words import size
from cloudtrain.provisioner.codec import encode
from cloudtrain.provisioner.errors import CloudUnreachable
from cloudtrain.provisioner.launch.access import Entry
from cloudtrain.provisioner.model import JobStatus
from cloudtrain.provisioner.names import record_key
from cloudtrain.provisioner.things import Kind, Thing
from tests.fake_inventory import FakeInventory
from tests.fakes import FakeObjectStore
from tests.records import job

from .world import World

BUCKET = "cloudtrain-123456789012-us-east-1-an"
REGION = "us-east-1"


class Account:
    """An account with a bucket, a failed job that left a machine with its volume, and a live one."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        clock: Any = SimpleNamespace(now=lambda: world.at)
        self.inventory = FakeInventory(clock, "me")
        self.objects = FakeObjectStore()
        self.inventory.buckets[BUCKET] = (REGION, self.objects)
        self.entered: list[str | None] = []
        self.bucket: str | None = BUCKET
        me = Identity("123456789012", "arn:aws:iam::123456789012:user/me", "me")
        clients: Any = None

        def enter(cloud: str, home: object, *, region: str | None) -> Entry:
            self.entered.append(region)
            return Entry("aws", clients, me, REGION)

        monkeypatch.setattr(gc, "enter", enter)
        monkeypatch.setattr(gc, "find_bucket", lambda *_: self.bucket)
        monkeypatch.setattr(gc, "AwsInventory", lambda *_, **__: self.inventory)
        monkeypatch.setattr(gc, "S3ObjectStore", lambda *_, **__: self.objects)

    def put(self, job_id: str, status: JobStatus) -> None:
        record = replace(job(job_id=job_id), status=status, owner="me", collected=True)
        self.objects.objects[record_key(job_id)] = encode(record)

    def leave(self, job_id: str, at: float) -> None:
        tags = {"cloudtrain:owner": "me", "cloudtrain:job": job_id}
        tags |= {"cloudtrain:generation": "1", "cloudtrain:token": f"ct-{job_id}-1-00"}
        pool = Pool("aws", REGION, "use1-az4", "g4dn.xlarge", CapacityType.ON_DEMAND)
        made: Callable[..., Thing] = lambda kind, name, **more: Thing(kind, name, REGION, tuple(tags.items()), **more)  # noqa: E731
        self.inventory.things += [
            made(Kind.MACHINE, f"i-{job_id}", state="running", made_at=at - 9000, pool=pool, has_address=True),
            made(Kind.VOLUME, f"vol-{job_id}", state="in-use", made_at=at - 9000, size_gib=100),
        ]


@pytest.fixture
def account(world: World, monkeypatch: pytest.MonkeyPatch) -> Account:
    made = Account(world, monkeypatch)
    made.put("a-1", JobStatus.FAILED)
    made.put("b-1", JobStatus.RUNNING)
    made.leave("a-1", world.at)
    made.leave("b-1", world.at)
    return made


def test_a_dry_run_lists_with_prices_and_ends_nothing(world: World, account: Account) -> None:
    code, out, err = world.run("gc", "--dry-run")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["i-a-1", "vol-a-1"]
    assert "b-1" not in out
    assert "2 things to end: $0.5420 per hour, $395.63 per month" in out  # 0.526 + 0.005 + 100 * 0.08 / 730
    assert "stays, b-1: its job is RUNNING" in err
    assert "next: `cloudtrain gc` ends them" in err
    assert account.inventory.asked == []
    assert max(map(len, out.splitlines())) <= 80


def test_without_a_terminal_it_needs_yes(world: World, account: Account) -> None:
    code, out, err = world.run("gc")
    assert (code, out) == (2, "")
    assert "add --yes, or --dry-run" in err
    assert account.entered == [], "refused before anything is asked"


def test_it_ends_and_says_what_was_seen_gone(world: World, account: Account) -> None:
    code, _, err = world.run("gc", "--yes")
    assert code == 0
    assert "2 things ended and seen gone" in err
    assert {t.thing_id for t in account.inventory.things} == {"i-b-1", "vol-b-1"}
    assert world.run("gc", "--yes")[:2] == (0, "nothing is left over\n")


def test_it_asks_with_the_number_and_the_price(world: World, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda text, **_: asked.append(text))
    assert world.run("gc", "--data")[0] == 0
    assert account.inventory.asked == []
    assert asked == [
        "End 2 things ($0.5420 per hour) for good?",
        f"Delete 1 object, {size(len(account.objects.objects[record_key('a-1')]))}, from bucket {BUCKET} for good?",
    ]


def test_what_is_refused_is_named_and_ends_with_one(world: World, account: Account) -> None:
    account.inventory.refuse["i-a-1"] = "i-a-1: OperationNotPermitted"
    code, _, err = world.run("gc", "--yes")
    assert code == 1
    assert "still there: instance i-a-1: i-a-1: OperationNotPermitted" in err
    assert "1 thing ended and seen gone" in err


def test_what_still_shuts_down_ends_with_101(world: World, account: Account) -> None:
    account.inventory.shutdown_s = 5000.0
    code, _, err = world.run("gc", "--yes")
    assert code == 101
    assert "i-a-1: it is shutting down" in err


def test_a_bucket_that_may_not_be_read_ends_nothing(world: World, account: Account) -> None:
    account.inventory.denied = {BUCKET}
    code, _, err = world.run("gc", "--yes")
    assert code == 6
    assert BUCKET in err
    assert account.inventory.asked == []


def test_the_configured_region_is_the_buckets_and_no_limit(
    world: World, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_REGION", "us-west-2")
    _, _, err = world.run("gc", "--dry-run")
    assert account.entered == ["us-west-2"]
    assert "looking in 2 regions" in err
    _, out, err = world.run("gc", "--dry-run", "--region", "us-west-2")
    assert "looking in 1 region of" in err
    assert "nothing is left over" in out


def test_data_goes_when_it_is_asked_for(world: World, account: Account) -> None:
    account.objects.objects["jobs/a-1/checkpoints/x"] = b"1" * 3000
    _, out, _ = world.run("gc", "--data", "--dry-run", "--region", "us-west-2")
    assert "a-1" in out
    assert "2 objects" in out
    code, out, err = world.run("gc", "--data", "--yes", "-o", "json")
    assert code == 0
    assert set(account.objects.objects) == {record_key("b-1")}
    document = json.loads(out)
    assert [(d["job"], d["end"], d["objects"]) for d in document["data"]] == [("a-1", True, 2), ("b-1", False, 1)]
    assert [(t["id"], t["end"], t["left"]) for t in document["things"]][:2] == [
        ("i-a-1", True, None),
        ("i-b-1", False, None),
    ]
    assert document["usd_per_hour"] == pytest.approx(0.542, abs=1e-3)
    assert "2 objects deleted" in err


def test_an_account_without_a_bucket(world: World, account: Account) -> None:
    """After `setup --destroy`: no job has a record, so old machines are nobody's."""
    account.bucket = None
    account.inventory.buckets.clear()
    _, out, _ = world.run("gc", "--dry-run", "--data")
    assert {"i-a-1", "i-b-1"} <= set(out.split())
    assert "no bucket" in out


def test_a_bucket_that_is_not_there_is_refused(world: World, account: Account) -> None:
    code, _, err = world.run("gc", "--dry-run", "--bucket", "nobody")
    assert code == 2
    assert "--bucket nobody" in err


def test_a_region_that_is_none_is_refused_with_the_one_that_was_meant(world: World, account: Account) -> None:
    code, out, err = world.run("gc", "--region", "us-east-11", "--dry-run")
    assert (code, out) == (2, "")
    assert "no region 'us-east-11'" in err and "did you mean us-east-1?" in err


def test_a_region_that_is_silent_keeps_nothing_elsewhere_and_ends_with_one(
    world: World, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = account.inventory.look

    def silent(region: str) -> object:
        if region == "us-west-2":
            raise CloudUnreachable("us-west-2: no answer")
        return look(region)

    monkeypatch.setattr(account.inventory, "look", silent)
    code, out, err = world.run("gc", "--yes")
    assert (code, [t.thing_id for t in account.inventory.things]) == (1, ["i-b-1", "vol-b-1"])
    assert "us-west-2 was not looked at: us-west-2: no answer" in err
    code, out, err = world.run("gc", "--yes")
    assert (code, out) == (1, "nothing is left over where it could be looked\n")


def test_a_machine_whose_record_is_damaged_is_named_with_the_way_to_end_it(world: World, account: Account) -> None:
    account.objects.objects[record_key("a-1")] = b"{"
    code, _, err = world.run("gc", "--yes")
    assert (code, len(account.inventory.things)) == (0, 4)
    assert "`aws ec2 terminate-instances --region us-east-1 --instance-ids i-a-1`" in err
    assert "i-b-1" not in err
