"""Tables and lines for people, none wider than 80 columns with usual names; on a narrower terminal, blocks of lines."""

from __future__ import annotations

import csv as csv_format
import io
import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from tabulate import tabulate

from cloudtrain.pricing.model import CapacityType
from cloudtrain.pricing.requirements import Why
from cloudtrain.pricing.transfer import GB
from cloudtrain.provisioner import ledger, report
from cloudtrain.provisioner.cli.words import SIMULATED, columns, counted, dollars, duration, printable, size
from cloudtrain.provisioner.model import Attempt, EndReason, JobRecord, JobStatus, Phase
from cloudtrain.provisioner.outputs import Costs, JobCost, Listed, Parts
from cloudtrain.provisioner.plan import Plan
from cloudtrain.provisioner.shipping.snapshot import Snapshot
from cloudtrain.provisioner.spec import JobSpec

PLAN_ROWS = 5
RESTORE_SHOWN_S = 10.0
OMITTED_SHOWN = 4


def one_object(value: Mapping[str, Any]) -> str:
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=True)


def table(rows: Sequence[Sequence[object]], headers: Sequence[str], right: Sequence[str] = ()) -> str:
    """Plain columns. ``right`` names the columns of numbers; nothing is parsed or reformatted."""
    align = ["right" if header in right else "left" for header in headers]
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    text = tabulate(cells, headers=headers, tablefmt="simple", colalign=align if cells else None, disable_numparse=True)
    room = columns()
    if room is None or not cells or max(map(len, text.splitlines())) <= room:
        return text
    return blocks(cells, headers)


def blocks(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    """A table turned on its side, for a terminal that it does not fit: a line for each cell, a block for each row."""
    name = max(map(len, headers))
    return "\n\n".join(
        "\n".join(f"{header:{name}}  {cell}" for header, cell in zip(headers, row, strict=True)) for row in rows
    )


def csv(rows: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> str:
    """Comma-separated, with a header."""
    text = io.StringIO()
    writer = csv_format.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def plan(spec: JobSpec, cloud: str, planned: Plan) -> str:
    """The cheapest pools, how many more there are, and why the other types are out."""
    kinds = {offering.pool.capacity_type for offering in planned.offerings}
    mixed, spot = len(kinds) > 1, CapacityType.SPOT in kinds
    rows = [
        (
            f"{offering.pool.region}/{offering.pool.zone_id}",
            offering.instance.name,
            f"{offering.instance.accelerator}:{offering.instance.accelerator_count}",
            offering.instance.vcpus,
            f"{offering.instance.memory_gib:g}",
            *((offering.pool.capacity_type,) if mixed else ()),
            f"{offering.price_per_hour.amount:.4f}",
        )
        for offering in planned.offerings[:PLAN_ROWS]
    ]
    head = ("where", "type", "gpu", "cpus", "GiB", *(("bought",) if mixed else ()), "$/hour")
    dated = max(offering.as_of for offering in planned.offerings)
    where = SIMULATED if cloud == "local" else f"AWS prices of {dated}"
    lines = [f"Plan for {spec.name} ({where})", "", table(rows, head, right=("cpus", "GiB", "$/hour")), ""]
    more = len(planned.offerings) - len(rows)
    how = "spot or on-demand" if mixed else "spot" if spot else "on-demand"
    order = f"{how} machines, tried in this order" + (f", then {more} more" if more else "")
    if planned.on_demand_usd_per_hour is not None:
        lines += [order, f"cheapest on demand: {planned.on_demand_usd_per_hour:.4f} $/hour"]
    else:
        lines.append(order)
    if planned.dropped:
        counts = Counter(d.why for d in planned.dropped)
        why = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
        lines.append(f"{counted(len(planned.dropped), 'other type')} left out ({why})")
    small = [d for d in planned.dropped if d.why is Why.MEMORY]
    if small and any(r.memory is None for r in spec.resources):  # our default, which may cost them money
        lines.append(f"  {small[0].instance_type}: {small[0].reason}; or set `memory`")
    for line in planned.unmet:
        lines += textwrap.wrap(f"no machine for alternative {line}", 80, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def workdir(shot: Snapshot) -> str:
    """What travels and what was left out."""
    if shot.sha256 is None:
        return "no workdir: nothing is shipped but the job's own commands"
    text = f"workdir: {counted(shot.files, 'file')}, {size(shot.bytes)}"
    if shot.omitted:
        named = ", ".join(printable(path) for path in shot.omitted[:OMITTED_SHOWN])
        more = len(shot.omitted) - OMITTED_SHOWN
        text += f"; left out: {named}" + (f" and {more} more" if more > 0 else "")
    return text


def jobs(rows: Sequence[Listed], *, wide: bool) -> str:
    """``ls``. Wide: every field."""
    if wide:
        headers = list(rows[0]) if rows else []
        return table([list(row.values()) for row in rows], headers, right=("step", "total_steps", "usd"))
    head = ("job", "status", "step", "try", "machine", "$/hour", "so far")
    cells = []
    for row in rows:
        known = row["step"] is not None and (row["step"] or row["total_steps"])
        steps = f"{row['step']}/{row['total_steps'] or '?'}" if known else None
        machine = "-" if row["pool"] is None else row["pool"].split("/")[3]
        rate = None if row["usd_per_hour"] is None else f"{row['usd_per_hour']:.4f}"
        cells.append((row["job"], row["status"], steps, row["attempt"], machine, rate, dollars(row["usd"])))
    return table(cells, head, right=("step", "try", "$/hour", "so far"))


def costs(found: Costs, *, each: bool) -> str:
    """``cost``: a row for each job, or for each attempt that had a machine; then what it comes to."""
    if each:
        return "\n".join([*(f"{_attempt_costs(job)}\n" for job in found["jobs"]), *_cost_notes(found)])
    head = ("job", "status", "time", "free", "$", "on demand", "saved")
    rows = [
        (
            job["job"],
            job["status"],
            duration(job["seconds"]),
            duration(job["free_seconds"]) if job["free_seconds"] else None,
            f"{job['usd']:.4f}",
            f"{job['usd_on_demand']:.4f}" if _compared(job) else None,
            f"{job['savings_pct']:.0f} %" if _compared(job) and job["savings_pct"] is not None else None,
        )
        for job in found["jobs"]
    ]
    return "\n".join([table(rows, head, right=("time", "free", "$", "on demand", "saved")), "", *_cost_notes(found)])


def _attempt_costs(job: JobCost) -> str:
    """A job's name and what it cost, attempt by attempt."""
    rows = [
        (
            attempt["attempt"],
            attempt["pool"].split("/")[3],
            attempt["capacity_type"],
            duration(attempt["seconds"]),
            f"{attempt['usd_per_hour']:.4f}",
            f"{attempt['usd']:.4f}",
            attempt["why"],
        )
        for attempt in job["attempts"]
        if attempt["started"] is not None
    ]
    head = ("try", "machine", "bought", "time", "$/hour", "$", "why")
    lines = [f"{job['job']}  {job['status']}  {dollars(job['usd'])}"]
    if rows:
        lines += ["", table(rows, head, right=("try", "time", "$/hour", "$"))]
    if _beside(job):
        kinds = ("machine_usd", "volume_usd", "address_usd", "transfer_usd", "usd")
        made = [
            (attempt["attempt"], *(f"{attempt[kind]:.4f}" for kind in kinds))  # type: ignore[literal-required]
            for attempt in job["attempts"]
            if attempt["usd"]
        ]
        names = ("try", "machine $", "volume $", "address $", "transfer $", "all $")
        lines += ["", table(made, names, right=names)]
    if job["home_usd"]:
        lines += ["", f"results brought home, {job['home_bytes'] / GB:.3f} GB: {dollars(job['home_usd'])}"]
    return "\n".join(lines)


def _cost_notes(found: Costs) -> list[str]:
    total = found["total"]
    line = f"{counted(total['jobs'], 'job')}: {dollars(total['usd'])} for {duration(total['seconds'])} of machine time"
    if total["free_seconds"]:
        line += f", {duration(total['free_seconds'])} of it free"
    lines = [line]
    if total["usd_on_demand"] is not None:
        saved = "" if total["savings_pct"] is None else f"; {_saved(total['savings_pct'])}"
        alone = ", machines alone" if _beside(total) else ""
        lines.append(f"what succeeded, on demand{alone}: {dollars(total['usd_on_demand'])}{saved}")
    if _beside(total) or total["home_usd"]:
        lines.insert(1, made_of(total, total["home_usd"]))
    for job in found["jobs"]:
        lines += [f"{job['job']}: {what} is not counted: no price is known" for what in job["unpriced"]]
    if assumed := sorted({region for job in found["jobs"] for region in job["assumed"]}):
        lines.append(f"no volume prices are known of {', '.join(assumed)}: the dearest known are counted")
    if any(job["home_usd"] for job in found["jobs"]):
        lines.append("results are counted from the first byte; AWS gives 100 GB a month free")
    simulated = sum(job["simulated_prices"] for job in found["jobs"])
    if simulated:
        lines.append(f"{counted(simulated, 'job')} in the local cloud: {SIMULATED}")
    return lines


def _beside(cost: Parts) -> bool:
    """Whether there is more to a cost than machine time."""
    return bool(cost["volume_usd"] or cost["address_usd"] or cost["transfer_usd"])


def made_of(cost: Parts, home_usd: float) -> str:
    """The parts of a cost, in words."""
    kinds = {"machines": cost["machine_usd"], "volumes": cost["volume_usd"], "addresses": cost["address_usd"]}
    more = {"transfer": cost["transfer_usd"], "results home": home_usd}
    shown = {**kinds, **{name: usd for name, usd in more.items() if usd}}
    text = ", ".join(f"{name}\xa0{dollars(usd)}" for name, usd in shown.items())
    return textwrap.fill(f"made of: {text}", 80, subsequent_indent="  ").replace("\xa0", " ")


def _compared(job: JobCost) -> bool:
    return job["status"] is JobStatus.SUCCEEDED and job["usd_on_demand"] is not None


def _saved(pct: float | Decimal) -> str:
    return f"{pct} % saved" if pct >= 0 else f"{-pct} % more was paid here"


def bill(record: JobRecord, now: float) -> str:
    """One row for each attempt that had a machine or may still get one, then what it comes to."""
    total = ledger.bill(record, now)
    rows = [
        (
            attempt.pool.zone_id,
            attempt.pool.instance_type,
            attempt.pool.capacity_type,
            attempt.end_reason or attempt.phase,
            duration(line.seconds),
            "free" if line.free and not line.usd else f"{line.usd:.4f}",
            f"{line.lost_steps}{'' if line.lost_steps_exact else '+'}",
        )
        for attempt, line in zip(record.attempts, total.lines, strict=True)
        if not _got_none(attempt)
    ]
    refused = Counter(attempt.end_reason for attempt in record.attempts if _got_none(attempt))
    note = f" ({SIMULATED})" if record.cloud == "local" else ""
    lines = [f"Bill for {record.job_id}{note}"]
    if rows:
        head = ("zone", "type", "bought", "state", "time", "$", "lost steps")
        lines += ["", table(rows, head, right=("time", "$", "lost steps")), ""]
    if refused:
        why = ", ".join(f"{reason} {count}" for reason, count in refused.most_common())
        lines.append(f"{counted(refused.total(), 'attempt')} got no machine ({why})")
    lines.append(f"total {dollars(float(total.usd))} for {duration(total.seconds)} of machine time")
    parts = report.parts(*total.lines)
    if _beside(parts) or total.home_usd:
        lines.append(made_of(parts, float(total.home_usd)))
    if record.outcome is EndReason.SUCCEEDED and total.usd_on_demand is not None and total.savings_pct is not None:
        saved = _saved(total.savings_pct)
        if total.savings_pct < 0 and any(0 < line.seconds < ledger.MINIMUM_S for line in total.lines):
            saved += " (a start is charged a minute at least)"
        alone = ", machines alone" if _beside(parts) else ""
        lines.append(f"the same work on demand{alone}: {dollars(float(total.usd_on_demand))}; {saved}")
    if any(line.free for line in total.lines):
        rest = ", volume and address not" if any(line.free and line.usd for line in total.lines) else ""
        lines.append(f"free: a spot machine that EC2 takes in its first hour{rest}")
    interruptions = counted(total.interruptions, "interruption")
    if not total.lost_steps_exact:
        lines.append("+: and what a machine that went without a word had trained since its last report")
    lost = f"{total.lost_steps}{'' if total.lost_steps_exact else '+'}"
    trained = f"{counted(total.steps, 'step')}, {lost} lost, " if total.steps else ""
    lines.append(f"{trained}{interruptions}")
    if record.metrics:
        lines.append(", ".join(f"{name} {value:.4g}" for name, value in record.metrics))
    return "\n".join(lines)


def _got_none(attempt: Attempt) -> bool:
    """Whether the attempt ended without ever having a machine."""
    return attempt.phase is Phase.ENDED and attempt.instance_id is None and attempt.running_at is None


def restored(record: JobRecord) -> str | None:
    """How long machines took to get data and checkpoint; None where that is not worth a line."""
    took = [(a.generation, a.restore_s) for a in record.attempts if a.restore_s is not None]
    if not record.mounts and all(seconds < RESTORE_SHOWN_S for _, seconds in took):
        return None
    words = ", ".join(f"{duration(seconds)} on attempt {generation}" for generation, seconds in took)
    return f"data and checkpoint were restored in {words}" if words else None


def results(record: JobRecord) -> str | None:
    """Where the results are or will be; None where none will come."""
    if record.collected:
        return f"results: {record.results}"
    return None if record.status.resting else f"results: {record.results} (not there yet)"


def moment(record: JobRecord, live: Mapping[str, Any]) -> str:
    """The job now, in one line: phase, step, loss, utilisation, money, time left."""
    parts = [f"{record.status}"]
    step = live.get("step")
    doing = _DOING.get(live.get("phase") or "")
    if doing is None and record.status is JobStatus.RUNNING and not step:
        doing = "no step reported yet"
    if live.get("phase") == "mounting" and live.get("mount_bytes"):
        doing = f"bringing the data, {size(live['mounted_bytes'])} of {size(live['mount_bytes'])}"
    if doing and not record.status.resting:
        parts[0] += f" ({doing})"
    total = live.get("total_steps") or record.total_steps
    if step is not None and (step or total):
        parts.append(f"step {step}/{total or '?'}")
    if live.get("loss") is not None:
        parts.append(f"loss {live['loss']:.4g}")
    use = [f"{name} {live[key]:.0f}%" for name, key in _USE if live.get(key) is not None]
    if use:
        parts.append(" ".join(use))
    if live.get("usd") is not None:
        parts.append(dollars(live["usd"]))
    if live.get("left_s") is not None:
        parts.append(f"{duration(live['left_s'])} left")
    return "  ".join(parts)


# The phases of an attempt, then those of its agent; "running" says no more than the status does.
_DOING = {
    "claimed": "asking for a machine",
    "booting": "the machine boots",
    "working": "the agent starts",
    "checking": "checking the machine",
    "mounting": "bringing the data",
    "setup": "setup",
    "restoring": "restoring the checkpoint",
    "saving": "saving",
    "ending": "the machine ends",
}
_USE = (("gpu", "gpu_percent"), ("cpu", "cpu_percent"), ("mem", "memory_percent"))
