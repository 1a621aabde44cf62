"""A bill, added up from a job's history for machines alone, second by second as AWS words it. It shares no line with
``ledger``: where the two differ by a cent, one of them is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from cloudtrain.provisioner.history import Fact

MINUTE, HOUR = 60, 3600
FREE_HUNDREDS = {"iops": 3000, "mib_s": 125}  # what gp3 brings along


class Contradiction(AssertionError):
    """The history says two things of one."""


def recount(history: Iterable[Fact], until: float) -> Fraction:
    """USD until then, exactly. Raises Contradiction."""
    history = list(history)
    attempts: dict[int, list[Fact]] = {}
    for fact in history:
        attempts.setdefault(fact.generation, []).append(fact)
    job = attempts.pop(0, [])
    rates = {fact.values["region"]: fact.values for fact in job if fact.kind == "rates"}
    bucket = _one(job, "created").values["bucket_region"] if job else ""
    data = [fact.values for fact in job if fact.kind == "data"]
    total = Fraction(0)
    for facts in attempts.values():
        total += _machine(facts, until) + _beside(facts, rates, until) + _moved(facts, rates, bucket, data)
    home = [fact.values["bytes"] for fact in job if fact.kind == "home"]
    if home:
        total += _transfer(rates, bucket, "internet", max(home))
    return total


def _one(facts: list[Fact], kind: str) -> Fact:
    found = {fact for fact in facts if fact.kind == kind}
    if len(found) != 1:
        raise Contradiction(f"{kind}: {sorted(found, key=repr)}")
    return found.pop()


def _at(facts: list[Fact], kind: str) -> Fraction | None:
    if kind == "ended" and not any(fact.kind == "ended" for fact in facts):  # not over yet: what is known so far
        return next((Fraction(str(fact.at)) for fact in reversed(facts) if fact.kind == "ending"), None)
    return Fraction(str(_one(facts, kind).at)) if any(fact.kind == kind for fact in facts) else None


def _machine(facts: list[Fact], until: float) -> Fraction:
    begin = _at(facts, "running")
    if begin is None:
        return Fraction(0)
    ended = _at(facts, "ended")
    end = max(begin, Fraction(str(until)) if ended is None else ended)
    taken = any(fact.kind == "taken" for fact in facts)
    if taken and _one(facts, "claimed").values["spot"] and end - begin < HOUR:
        return Fraction(0)
    end = max(end, begin + MINUTE)
    # The first price holds from the beginning, each other from when it was known; one that another computer's clock
    # puts before its forerunner follows that at once.
    prices: list[tuple[Fraction, Fraction]] = []
    for fact in (fact for fact in facts if fact.kind == "price"):
        at = max([begin, Fraction(str(fact.at)), *(at for at, _ in prices)]) if prices else begin
        prices.append((at, Fraction(fact.values["usd_per_hour"])))
    edges = sorted({begin, end, *(at for at, _ in prices if begin < at < end)})
    total = Fraction(0)
    for since, to in itertools.pairwise(edges):
        total += (to - since) * [price for at, price in prices if at <= since][-1] / HOUR
    return total


def _beside(facts: list[Fact], rates: dict[str, Any], until: float) -> Fraction:
    """The volume and the address."""
    rate = rates.get(_one(facts, "claimed").values["region"])
    launched = [fact for fact in facts if fact.kind == "launched"]
    if rate is None or not launched:
        return Fraction(0)
    what, begin = _one(facts, "launched").values, Fraction(str(_one(facts, "launched").at))
    ended, gone = _at(facts, "ended"), _at(facts, "gone")
    last = gone if gone is not None else ended if ended is not None else Fraction(str(until))
    month: Fraction = what["gib"] * Fraction(rate["gib_month_usd"])
    month += max(0, what["iops"] - FREE_HUNDREDS["iops"]) * Fraction(rate["iops_month_usd"])
    month += max(0, what["mib_s"] - FREE_HUNDREDS["mib_s"]) * Fraction(rate["mib_s_month_usd"])
    total: Fraction = month * _months(begin, max(last, begin + MINUTE))
    if what["address"]:
        off = min(last, ended) if ended is not None else last
        total += max(Fraction(0), off - begin) / HOUR * Fraction(rate["address_hour_usd"])
    return total


def _months(begin: Fraction, end: Fraction) -> Fraction:
    """Day by day, each a share of its month."""
    total, day = Fraction(0), int(begin // 86400)
    while day * 86400 < end:
        date = datetime.fromtimestamp(day * 86400, UTC)
        following = datetime(date.year + date.month // 12, date.month % 12 + 1, 1, tzinfo=UTC)
        length = (following - datetime(date.year, date.month, 1, tzinfo=UTC)).days * 86400
        within = min(end, Fraction((day + 1) * 86400)) - max(begin, Fraction(day * 86400))
        total += within / length
        day += 1
    return total


def _moved(facts: list[Fact], rates: dict[str, Any], bucket: str, data: list[dict[str, Any]]) -> Fraction:
    if not any(fact.kind == "moved" for fact in facts):
        return Fraction(0)
    here, what = _one(facts, "claimed").values["region"], _one(facts, "moved").values
    total = _transfer(rates, bucket, here, what["received"]) + _transfer(rates, here, bucket, what["sent"])
    size = sum(item["bytes"] for item in data)
    for item in data:  # all of it as far as it came, each part in proportion
        total += _transfer(
            rates, item["region"], here, item["bytes"] * min(size, what["mounted"]) // size if size else 0
        )
    return total


def _transfer(rates: dict[str, Any], source: str, target: str, count: int) -> Fraction:
    if source == target or source not in rates:
        return Fraction(0)
    ways = dict(rates[source]["out_gb_usd"])
    return Fraction(ways[target]) * count / 10**9 if target in ways else Fraction(0)
