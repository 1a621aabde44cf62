"""What commands print with `-o json`: each in its published form, and the published forms are the code's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from cloudtrain.provisioner.cli import reference
from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.model import EndReason, JobStatus, Phase
from cloudtrain.provisioner.outputs import OUTPUTS, Listed
from tests import forms
from tests.records import job, over

from .world import World, succeeded

ROOT = Path(__file__).parents[2]

# The fields of `ls -o json`, as the design fixes them.
LS = [
    "job",
    "name",
    "status",
    "step",
    "total_steps",
    "attempt",
    "pool",
    "capacity_type",
    "usd",
    "usd_per_hour",
    "started",
]


def machines(world: World) -> None:
    """Jobs of every kind: not yet placed, running, stopped, over."""
    world.add(job(job_id="new-000000", name="new"))
    runs = replace(over(1, 0, EndReason.SUCCEEDED, steps=(0, 9)), phase=Phase.WORKING, ended_at=None, end_reason=None)
    world.add(replace(job(runs, job_id="run-000000", name="run"), status=JobStatus.RUNNING, total_steps=9))
    world.live("run-000000", phase="running", step=9, loss=0.5, gpu_percent=99.0, left_s=3.5, checks=["ok"], usd=0.1)
    stopped = replace(job(over(1, 60, EndReason.STOPPED), job_id="stop-00000", name="stop"), status=JobStatus.STOPPED)
    world.add(stopped)
    world.store.want("stop-00000", "stop")
    world.add(succeeded(job(job_id="done-00000", name="done"), 1_800_000_050.0))


def printed(out: str) -> Any:
    return json.loads(out)


@pytest.mark.parametrize(
    "line",
    ["ls", "show new", "show run", "show stop", "show done", "cost", "cost done", "config show", "stop stop-00000"],
)
def test_what_is_printed_has_its_published_form(world: World, line: str) -> None:
    machines(world)
    args = [*line.split(), "-o", "json"]
    code, out, _ = world.run(*args)
    assert code == 0
    name = line if line in OUTPUTS else line.split()[0]
    assert forms.check(args, out) == OUTPUTS[name][0].__name__


@pytest.mark.parametrize("change", [lambda d: d.pop("jobs"), lambda d: d.update(more=1), lambda d: d.update(jobs=1)])
def test_another_form_is_found_wherever_a_test_runs_a_command(change: Callable[[dict[str, Any]], object]) -> None:
    document: dict[str, Any] = {"schema_version": 1, "jobs": []}
    assert forms.check(["ls", "-o", "json"], json.dumps(document)) == "Listing"
    change(document)
    with pytest.raises(AssertionError, match=r"`cloudtrain ls -o json` printed none of \['Listing'\]"):
        forms.check(["ls", "-o", "json"], json.dumps(document))


def test_what_down_prints(world: World) -> None:
    record = world.add()

    def ends(world: World) -> None:
        ended = (replace(over(1, 100, EndReason.CANCELLED), instance_id="i-1"),)
        world.change(record.job_id, status=JobStatus.CANCELLED, attempts=ended, collected=True, swept=True)

    world.script = [ends]
    code, out, _ = world.run("down", "digits", "-y", "-o", "json")
    assert (code, printed(out)["jobs"]) == (
        0,
        [{"job": record.job_id, "status": "CANCELLED", "done": True, "machines": 1, "usd": 0.01}],
    )


def test_ls_has_exactly_the_fields_of_the_design(world: World) -> None:
    machines(world)
    rows = printed(world.run("ls", "-o", "json")[1])["jobs"]
    assert [list(row) for row in rows] == [list(LS)] * 4 == [list(Listed.__annotations__)] * 4


def with_json() -> list[str]:
    """The commands that offer `-o json`."""
    return [
        name
        for name, command in reference.commands()
        for option in command.params
        if "--output" in option.opts and isinstance(option.type, click.Choice) and "json" in option.type.choices
    ]


def test_every_command_with_json_has_published_forms() -> None:
    assert set(with_json()) == set(OUTPUTS)


def test_the_reference_and_the_schemas_are_current() -> None:
    """`make docs` brings them up to date."""
    assert (ROOT / "docs/cli.md").read_text() == reference.page(), "run `make docs`"
    assert (ROOT / "docs/errors.md").read_text() == reference.errors_page(), "run `make docs`"
    folder = ROOT / "docs/schemas"
    found = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert found == reference.schemas(), "run `make docs`"
    templates = {path.name: path.read_text() for path in (ROOT / "templates/aws").iterdir()}
    assert templates == reference.aws_files(), "run `make docs`"


def changed(schema: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    change(copy["$defs"])
    return copy


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        (lambda d: d["Listed"]["properties"].pop("usd"), ["Listed.usd"]),
        (lambda d: d["Listed"]["properties"].update(usd={"type": "string"}), ["Listed.usd"]),
        (lambda d: d["JobStatus"]["enum"].remove("STOPPED"), ["JobStatus"]),
        (lambda d: d["Listed"]["properties"].update(more={"type": "string"}), []),
        (lambda d: d["JobStatus"]["enum"].append("PAUSED"), []),
    ],
)
def test_what_breaks_readers_is_found(change: Callable[[dict[str, Any]], object], gone: list[str]) -> None:
    schema = reference.schemas()["listing.json"]
    assert reference.breaks(schema, changed(schema, change)) == gone


def test_a_schema_is_not_rewritten_under_its_old_number(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    reference.write(docs)
    path = docs / "schemas" / "listing.json"
    now = json.loads(path.read_text())
    path.write_text(json.dumps(changed(now, lambda d: d["Listed"]["properties"].update(gone={"type": "string"}))))
    with pytest.raises(CloudtrainError, match=r"Listed\.gone would change: raise outputs\.SCHEMA_VERSION first"):
        reference.write(docs)
