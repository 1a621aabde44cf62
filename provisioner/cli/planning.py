"""What ``plan`` and ``launch`` share: the flags that change a job file, and how a plan is shown."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from cloudtrain.provisioner import report
from cloudtrain.provisioner.cli import data, limits, tables
from cloudtrain.provisioner.cli.words import say, tell
from cloudtrain.provisioner.jobfile.overrides import Overrides
from cloudtrain.provisioner.launch.launching import Prepared
from cloudtrain.provisioner.shipping.mounts import DataPlan
from cloudtrain.provisioner.shipping.snapshot import Snapshot

_OPTIONS = (
    click.option(
        "--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Where to run."
    ),
    click.option("--name", metavar="NAME", help="Call the job so."),
    click.option("--gpu", metavar="TYPE:N", help="Accelerators, such as T4:1 or '{A100:8, H100:8}'."),
    click.option("--instance-type", metavar="TYPE", help="Insist on one machine type."),
    click.option("--spot/--on-demand", "spot", default=None, help="How to buy the machine."),
    click.option("--region", multiple=True, metavar="REGION", help="Only there; may be given several times."),
    click.option("--max-price", metavar="USD", help="Per hour, at most."),
    click.option("--budget", metavar="USD", help="All attempts together, at most."),
    click.option("--max-run", metavar="TIME", help="Paid machine time, at most: 90s, 15m, 2h, 1d."),
    click.option("--max-wait", metavar="TIME", help="Without a machine, at most, each time.  [default: 0s, then 1d]"),
    click.option("--deadline", metavar="TIME", help="From now on; past it the job goes on, and ends with 5."),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set a variable; may be given several times."),
)


def overriding(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags above; it gets them as ``cloud`` and one ``flags: Overrides``."""

    @functools.wraps(function)
    def call(
        *args: Any,
        name: str | None,
        gpu: str | None,
        instance_type: str | None,
        spot: bool | None,
        region: tuple[str, ...],
        max_price: str | None,
        budget: str | None,
        max_run: str | None,
        max_wait: str | None,
        deadline: str | None,
        env: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        configured = click.get_current_context().get_parameter_source("region") is ParameterSource.DEFAULT_MAP
        flags = Overrides(
            name=name,
            gpu=gpu,
            instance_type=instance_type,
            spot=spot,
            regions=() if configured else region,
            max_price=max_price,
            budget=budget,
            deadline=deadline,
            max_run=max_run,
            max_wait=max_wait,
            envs=env,
            default_region=region[0] if configured else None,
        )
        return function(*args, flags=flags, **rest)

    for option in reversed(_OPTIONS):
        call = option(call)
    return call


def show_plan(
    prepared: Prepared, shot: Snapshot, mounts: DataPlan | None, *, as_json: bool, aside: bool = False
) -> None:
    """The plan on stdout, or ``aside`` where it is not the result."""
    cloud = prepared.cloud
    if as_json:
        click.echo(tables.one_object(report.planned(prepared.spec, cloud, prepared.plan, shot, mounts)))
        return
    tell(f"{tables.plan(prepared.spec, cloud, prepared.plan)}\n{tables.workdir(shot)}", err=aside)
    for line in limits.at_most(report.at_most(prepared.spec, prepared.plan)):
        tell(line, err=aside)
    if mounts is not None:
        tell(data.text(mounts), err=aside)
    if cloud == "local":
        say("the job's `run` is an ordinary process on this computer, with your rights")
