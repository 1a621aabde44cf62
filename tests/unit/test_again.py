"""A job that a limit ended, taken up again with a larger one."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.provisioner.codec import encode
from cloudtrain.provisioner.controller.takeover import look
from cloudtrain.provisioner.decide import again
from cloudtrain.provisioner.decide.limits import DEFAULT
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import EndReason, JobRecord, JobStatus
from cloudtrain.provisioner.names import record_key
from cloudtrain.provisioner.spec import Interval, JobSpec, Recovery
from tests.bench import Bench, nothing_left
from tests.fake_agent import World
from tests.records import OFFERINGS, job, over

PRICE = Decimal("1.50")


def hours(total_steps: int) -> World:
    world = World(total_steps=total_steps)
    world.cloud.prices = {o.pool: PRICE for o in OFFERINGS}
    return world


def taken_up(bench: Bench, record: JobRecord, spec: JobSpec) -> None:
    """What `resume` does to the bucket and the store."""
    reopened = replace(again.reopened(record, spec), revision=record.revision + 1)
    etag = look(bench.world.objects, record.job_id).etag
    etag = bench.world.objects.put(record_key(record.job_id), encode(reopened), if_match=etag)
    bench.store.put(reopened, etag)
    bench.store.want(record.job_id, "run")


@pytest.mark.parametrize(
    ("limit", "more"),
    [
        ({"budget_usd": Decimal("0.50")}, {"budget_usd": Decimal("2.00")}),
        ({"max_run_s": 1200.0}, {"max_run_s": 7200.0}),
    ],
)
def test_with_more_it_goes_on_at_its_checkpoint_and_the_whole_is_billed(
    tmp_path: Path, limit: dict[str, Any], more: dict[str, Any]
) -> None:
    world = hours(2400)
    bench = Bench(tmp_path, world, checkpoint_interval=Interval(seconds=60), **limit)
    ended = bench.run()
    assert ended.status is JobStatus.FAILED and again.resumable(ended)
    spent = bill(ended, world.clock.now()).usd
    taken_up(bench, ended, replace(ended.spec, **more))
    done = bench.run()
    assert done.status is JobStatus.SUCCEEDED, done.detail
    one, two = done.attempts
    assert two.start_step == one.durable_step == one.last_step > 0
    assert bill(done, world.clock.now()).usd > spent
    nothing_left(world)


def test_a_larger_budget_is_kept_too_and_counts_what_was_spent_before(tmp_path: Path) -> None:
    world = hours(86_400)
    bench = Bench(tmp_path, world, checkpoint_interval=Interval(seconds=60), budget_usd=Decimal("0.50"))
    taken_up(bench, ended := bench.run(), replace(ended.spec, budget_usd=Decimal("0.90")))
    record = bench.run()
    assert (record.outcome, len(record.attempts)) == (EndReason.BUDGET, 2)
    assert Decimal("0.80") < bill(record, world.clock.now()).usd <= Decimal("0.90") + PRICE * 5 / 3600


def test_what_leaves_nothing_is_refused_with_the_least_that_would_do(tmp_path: Path) -> None:
    world = hours(86_400)
    bench = Bench(tmp_path, world, checkpoint_interval=Interval(seconds=60), budget_usd=Decimal("0.50"))
    ended = bench.run()
    now = world.clock.now()
    spec = replace(ended.spec, budget_usd=bill(ended, now).usd)
    refused = again.refusal(again.reopened(ended, spec), now, DEFAULT)
    assert refused is not None and "--budget 0." in refused
    least = Decimal(refused.split("--budget ")[1].split("`")[0])
    assert again.refusal(again.reopened(ended, replace(ended.spec, budget_usd=least)), now, DEFAULT) is None
    less = replace(ended.spec, budget_usd=least - Decimal("0.02"))
    assert again.refusal(again.reopened(ended, less), now, DEFAULT) is not None


def test_as_many_interruptions_are_allowed_once_more_and_none_is_forgotten() -> None:
    record = replace(job(), status=JobStatus.FAILED, outcome=EndReason.PREEMPTIONS, preemptions=3)
    spec = replace(record.spec, recovery=Recovery(max_preemptions=2))
    reopened = again.reopened(replace(record, spec=spec), spec)
    assert (reopened.spec.recovery.max_preemptions, reopened.preemptions) == (5, 3)


@pytest.mark.parametrize("outcome", [o for o in EndReason if o not in again.LIMITED])
def test_what_failed_by_itself_is_over(outcome: EndReason) -> None:
    assert not again.resumable(replace(job(), status=JobStatus.FAILED, outcome=outcome))


def test_the_next_command_doubles_the_limit_that_ended_it() -> None:
    plain = replace(job(), status=JobStatus.FAILED)
    spec = replace(plain.spec, budget_usd=Decimal("10"), max_run_s=60.0)
    record = replace(plain, spec=spec, outcome=EndReason.BUDGET)
    assert again.next_step(record) == f"`cloudtrain resume {record.job_id} --budget 20` tries again"
    saved = replace(over(1, 100, EndReason.MAX_RUN, steps=(0, 140)), durable_step=140)
    record = replace(record, outcome=EndReason.MAX_RUN, attempts=(saved,))
    assert again.next_step(record).endswith("--max-run 120s` goes on from its last checkpoint")
