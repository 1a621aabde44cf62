"""The bill: per second, a minute at least, nothing in EC2's own first hour, and the price of each hour."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.pricing import extras, transfer
from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.charges import months
from cloudtrain.provisioner.codec import decode, encode
from cloudtrain.provisioner.history import facts
from cloudtrain.provisioner.ledger import bill
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, Phase, PricePoint
from cloudtrain.provisioner.spec import AwsOptions
from cloudtrain.trainer.contract import Mount
from tests.records import OFFERINGS, job, over
from tests.recount import Contradiction, recount

NOW = 1_800_100_000.0
GB = 10**9
RATES = extras.pinned(OFFERINGS, "us-east-1", ["us-west-1"])
HUNDREDTH_OF_A_CENT = Fraction(1, 10_000)


def test_seconds_are_billed_with_one_minute_at_least() -> None:
    spent = bill(job(over(1, 1000, EndReason.SUCCEEDED), over(2, 10, EndReason.CANCELLED)), NOW)
    assert [line.machine_usd for line in spent.lines] == [Decimal("0.1000"), Decimal("0.0060")]


def test_a_machine_that_ec2_takes_in_its_first_hour_is_free_and_later_is_not() -> None:
    early = over(1, 3599, EndReason.INTERRUPTED, by_cloud=True)
    late = over(2, 3600, EndReason.INTERRUPTED, by_cloud=True)
    ours = over(3, 600, EndReason.CANCELLED)
    on_demand = over(4, 600, EndReason.MACHINE_LOST, by_cloud=True, capacity_type=CapacityType.ON_DEMAND)
    spent = bill(job(early, late, ours, on_demand), NOW)
    assert [line.machine_usd for line in spent.lines] == [
        Decimal(0),
        Decimal("0.3600"),
        Decimal("0.0600"),
        Decimal("0.0600"),
    ]
    assert [line.free for line in spent.lines] == [True, False, False, False]


def test_each_hour_is_billed_at_the_price_paid_then() -> None:
    attempt = over(1, 5400, EndReason.SUCCEEDED)
    begin = attempt.running_at or 0
    attempt = replace(
        attempt, prices=(PricePoint(begin - 5, Decimal("0.36")), PricePoint(begin + 3600, Decimal("0.72")))
    )
    assert bill(job(attempt), NOW).usd == Decimal("0.7200")


def test_a_refused_launch_costs_nothing() -> None:
    refused = replace(over(1, 0, EndReason.NO_CAPACITY), running_at=None, started_at=None, start_step=None)
    assert bill(job(refused), NOW).usd == 0


def test_lost_steps_are_those_that_were_trained_twice() -> None:
    one = over(1, 100, EndReason.INTERRUPTED, steps=(0, 140))
    two = over(2, 100, EndReason.SUCCEEDED, steps=(100, 300))
    spent = bill(job(one, two), NOW)
    assert (spent.lost_steps, spent.steps, spent.interruptions) == (40, 300, 1)
    assert not spent.lost_steps_exact, "it went without a word: what it trained after its last report, nobody saw"
    assert bill(job(replace(one, handed_over=True), two), NOW).lost_steps_exact


def test_no_step_is_called_lost_before_the_next_machine_has_resumed() -> None:
    one = over(1, 100, EndReason.INTERRUPTED, steps=(0, 140))
    two = replace(over(2, 10, EndReason.SUCCEEDED), start_step=None, last_step=0)
    assert bill(job(one, two), NOW).lost_steps == 0


def test_what_on_demand_would_have_cost_counts_productive_seconds_alone() -> None:
    one = over(1, 140, EndReason.INTERRUPTED, steps=(0, 140), by_cloud=True)
    two = over(2, 200, EndReason.SUCCEEDED, steps=(100, 300))
    spent = bill(job(one, two), NOW)
    assert spent.usd_on_demand == (Decimal(300) * Decimal("0.526") / 3600).quantize(Decimal("0.0001"))
    assert spent.usd == Decimal("0.0200")
    assert spent.savings_pct == Decimal("54.3")  # 1 - 0.0200 / 0.0438


def test_on_demand_would_have_cost_its_first_minute_too() -> None:
    short = replace(over(1, 20, EndReason.SUCCEEDED), run_seconds=20.0, last_step=10)
    spent = bill(replace(job(short), on_demand_usd_per_hour=Decimal("0.60")), NOW)
    assert spent.usd_on_demand == Decimal("0.0100")


def test_without_an_on_demand_price_no_saving_is_claimed() -> None:
    record = replace(job(over(1, 100, EndReason.SUCCEEDED)), on_demand_usd_per_hour=None)
    assert bill(record, NOW).savings_pct is None


@given(
    seconds=st.lists(st.integers(0, 200_000), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 100_000), max_size=5),
)
def test_the_total_is_the_sum_of_its_lines_and_cutting_the_price_line_changes_nothing(
    seconds: list[int], cuts: list[int]
) -> None:
    attempts = [over(i + 1, s, EndReason.SUCCEEDED) for i, s in enumerate(seconds)]
    begin = attempts[0].running_at or 0
    pieces = tuple(PricePoint(begin + cut, Decimal("0.36")) for cut in sorted(cuts))
    cut = [replace(a, prices=a.prices + pieces) for a in attempts]
    whole, same = bill(job(*attempts), NOW), bill(job(*cut), NOW)
    assert whole.usd == sum(line.usd for line in whole.lines)
    assert [line.machine_usd for line in whole.lines] == [line.machine_usd for line in same.lines]


def seen(attempt: Attempt, **more: object) -> Attempt:
    """An attempt whose machine was there ten seconds before it ran, and thirty after it shut down."""
    assert attempt.running_at is not None and attempt.ended_at is not None
    there = {"instance_id": "i-1", "root_gib": 100, "launched_at": attempt.running_at - 10}
    return replace(attempt, **{**there, "gone_at": attempt.ended_at + 30, **more})  # type: ignore[arg-type]


def priced(*attempts: Attempt) -> JobRecord:
    return replace(job(*attempts), rates=RATES)


def test_volume_and_address_are_paid_from_the_launch_on_also_where_the_machine_was_free() -> None:
    taken = bill(priced(seen(over(1, 3590, EndReason.INTERRUPTED, by_cloud=True))), NOW).lines[0]
    assert taken.machine_usd == 0 and taken.free
    assert taken.address_usd == Decimal("0.0050"), "an hour, from the launch until it shut down"
    # 100 GiB for 3,630 s of January 2027 (31 days) at 0.08 a GiB-month
    assert taken.volume_usd == (100 * Decimal("0.08") * 3630 / (31 * 86400)).quantize(Decimal("0.0001"))
    assert taken.usd == taken.volume_usd + taken.address_usd


def test_a_machine_without_a_public_address_pays_for_none_and_throughput_costs_what_is_beyond_gp3s_own() -> None:
    record = priced(seen(over(1, 3560, EndReason.SUCCEEDED)))
    private = replace(record, spec=replace(record.spec, aws=AwsOptions(public_ip=False, volume_throughput=1000)))
    line, plain = bill(private, NOW).lines[0], bill(record, NOW).lines[0]
    assert line.address_usd == 0 < plain.address_usd
    beyond = (1000 - 125) * Decimal("0.04") + (4000 - 3000) * Decimal("0.005")
    share = Decimal(3600) / (31 * 86400)
    assert line.volume_usd == ((100 * Decimal("0.08") + beyond) * share).quantize(Decimal("0.0001"))


def test_a_month_is_as_long_as_the_calendar_says_in_utc() -> None:
    for year, month, days in ((2027, 2, 28), (2028, 2, 29), (2027, 3, 31), (2026, 11, 30)):
        begin = datetime(year, month, 1, tzinfo=UTC).timestamp()
        assert months(begin, begin + days * 86400) == 1
    across = datetime(2027, 1, 31, 12, tzinfo=UTC).timestamp()
    assert months(across, across + 86400) == Decimal(43200) / (31 * 86400) + Decimal(43200) / (28 * 86400)
    assert months(across, across - 5) == 0


def test_data_that_crosses_regions_is_paid_where_the_bytes_are_known() -> None:
    attempt = seen(over(1, 600, EndReason.SUCCEEDED), mounted_bytes=8 * GB, received_bytes=GB, sent_bytes=2 * GB)
    mounts = (Mount("/a", "k", "s", 6 * GB, 1, "us-west-1"), Mount("/b", "k", "s", 2 * GB, 1))
    record = replace(priced(attempt), mounts=mounts, home_bytes=3 * GB)
    spent = bill(record, NOW)
    assert spent.lines[0].transfer_usd == Decimal("0.12"), "6 GB from us-west-1; the rest is within its region"
    assert (spent.home_usd, spent.home_bytes) == (Decimal("0.27"), 3 * GB)
    assert spent.usd == sum(line.usd for line in spent.lines) + spent.home_usd
    elsewhere = replace(record, region="us-west-2", rates=extras.pinned(OFFERINGS, "us-west-2", ["us-west-1"]))
    moved = bill(elsewhere, NOW).lines[0].transfer_usd
    assert moved == Decimal("0.22"), "6 + 2 + 1 GB in at 0.02, 2 GB out at 0.02"


def test_what_has_no_known_rate_is_named_and_not_called_free() -> None:
    record = replace(priced(seen(over(1, 600, EndReason.SUCCEEDED))), region="sa-east-1", home_bytes=GB)
    record = replace(record, rates=extras.pinned(OFFERINGS, "sa-east-1", []))
    (unknown,) = bill(record, NOW).unpriced
    assert (unknown.source, unknown.target, unknown.bytes, unknown.usd) == ("sa-east-1", "internet", GB, None)
    assert bill(record, NOW).assumed == (), "the machine's own region is known"


def test_a_rate_that_is_not_counted_with_is_not_called_assumed() -> None:
    record = priced(seen(over(1, 600, EndReason.SUCCEEDED)))
    region = record.attempts[0].pool.region
    known = [replace(r, assumed=(extras.IOPS_MONTH, extras.MIB_S_MONTH)) for r in RATES if r.region == region]
    record = replace(record, rates=tuple(known))
    assert bill(record, NOW).assumed == ()
    faster = replace(record, spec=replace(record.spec, aws=replace(record.spec.aws, volume_throughput=500)))
    assert bill(faster, NOW).assumed == (region,)


def test_a_record_from_before_rates_bills_its_machines_alone() -> None:
    spent = bill(replace(job(seen(over(1, 600, EndReason.SUCCEEDED))), home_bytes=GB), NOW)
    assert spent.usd == spent.lines[0].machine_usd == Decimal("0.06")


def test_a_later_catalogue_changes_no_bill(monkeypatch: pytest.MonkeyPatch) -> None:
    record = replace(priced(seen(over(1, 7000, EndReason.SUCCEEDED), sent_bytes=GB)), home_bytes=5 * GB)
    before = bill(record, NOW)
    dearer = {key: (10 * usd, as_of, source) for key, (usd, as_of, source) in extras.load().items()}
    monkeypatch.setattr(extras, "load", lambda: dearer)
    monkeypatch.setattr(transfer, "load", dict)
    assert extras.rates("us-east-1", []).gib_month_usd == Decimal("0.80"), "the catalogue did change"
    assert bill(decode(encode(record)), NOW) == before


SECONDS = st.one_of(st.integers(-50, 200_000), st.floats(0, 10_000).map(lambda s: round(s, 3)))
PRICES = st.lists(st.tuples(SECONDS, st.integers(1, 2_000_000)), min_size=1, max_size=4)


@st.composite
def lives(draw: st.DrawFn) -> Attempt:
    """Anything that a machine may live through, by clocks that may disagree."""
    generation = draw(st.integers(1, 3))
    begin = NOW + draw(SECONDS)
    kind = draw(st.sampled_from(CapacityType))
    stage = draw(st.integers(0, 5))
    prices = tuple(PricePoint(begin + at, Decimal(micro) / 10**6) for at, micro in draw(PRICES))
    attempt = replace(
        over(generation, 0, EndReason.SUCCEEDED, capacity_type=kind),
        phase=Phase.ENDED if stage == 5 else Phase.WORKING,
        claimed_at=begin,
        prices=prices,
        launched_at=begin + draw(SECONDS) if stage else None,
        instance_id="i-1" if stage else None,
        root_gib=draw(st.integers(1, 2000)),
        running_at=begin + draw(SECONDS) if stage > 1 else None,
        ended_at=begin + draw(SECONDS) if stage > 2 else None,
        end_reason=EndReason.INTERRUPTED if stage == 5 else None,
    )
    if stage < 5:
        return attempt
    moved = draw(st.tuples(*[st.integers(0, 10**13)] * 3))
    return replace(
        attempt,
        gone_at=begin + draw(SECONDS),
        ended_by_cloud=draw(st.booleans()),
        mounted_bytes=moved[0],
        received_bytes=moved[1],
        sent_bytes=moved[2],
    )


@given(st.lists(lives(), min_size=1, max_size=3), SECONDS, st.booleans(), st.integers(0, 10**12), st.booleans())
def test_the_bill_is_the_one_that_the_history_for_machines_comes_to(
    attempts: list[Attempt], later: float, public: bool, home: int, let_go: bool
) -> None:
    attempts = [replace(attempt, generation=index + 1) for index, attempt in enumerate(attempts)]
    record = replace(priced(*attempts), home_bytes=home, region="us-west-2")
    mounts = (Mount("/a", "k", "s", 6 * GB, 1, "us-west-1"), Mount("/b", "k", "s", 10**12, 1))
    record = replace(record, mounts=mounts, rates=extras.pinned(OFFERINGS, "us-west-2", ["us-west-1"]))
    record = replace(record, spec=replace(record.spec, aws=AwsOptions(public_ip=public, volume_throughput=900)))
    now = NOW + later
    spent = bill(replace(record, let_go_at=now) if let_go else record, now + 500 * let_go)
    again = recount(facts(record), now)
    rounded = 4 * len(attempts) + 1
    assert abs(Fraction(spent.usd) - again) <= rounded * HUNDREDTH_OF_A_CENT / 2
    assert spent.usd >= 0 and all(min(line.machine_usd, line.volume_usd, line.address_usd) >= 0 for line in spent.lines)


def test_a_history_that_says_two_things_is_refused() -> None:
    record = priced(seen(over(1, 600, EndReason.SUCCEEDED)))
    other = priced(seen(over(1, 700, EndReason.SUCCEEDED)))
    with pytest.raises(Contradiction, match="ended"):
        recount([*facts(record), *facts(other)], NOW)
