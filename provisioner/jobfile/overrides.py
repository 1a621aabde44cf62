"""What flags change in a job file, for one launch or plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from cloudtrain.pricing.accelerators import AcceleratorError, canonical, parse
from cloudtrain.pricing.catalog import Catalog
from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.jobfile.values import (
    DURATION_FORM,
    NAME_FORM,
    USD_FORM,
    duration_s,
    env_problem,
    is_name,
    nearest,
    usd,
)
from cloudtrain.provisioner.spec import JobSpec, Resources


@dataclass(frozen=True, slots=True)
class Overrides:
    """The flags as they were typed; a value that is None or empty leaves the job file as it is.

    ``default_region`` is the configuration's: it counts only where neither the flags nor the job file name a place.
    """

    name: str | None = None
    gpu: str | None = None
    instance_type: str | None = None
    spot: bool | None = None
    regions: tuple[str, ...] = ()
    max_price: str | None = None
    budget: str | None = None
    deadline: str | None = None
    max_run: str | None = None
    max_wait: str | None = None
    envs: tuple[str, ...] = ()  # NAME=VALUE
    default_region: str | None = None


def apply(spec: JobSpec, flags: Overrides, catalog: Catalog) -> JobSpec:
    """The job as the flags want it. What names the machine applies to each alternative of ``resources``.

    ``--gpu`` and ``--instance-type`` each replace the file's own choice of machine, whichever way it was made. Raises
    UsageError that names the flag and, where there is one, the nearest value.
    """
    infra = tuple(_place(region, "--region", catalog) for region in flags.regions)
    fallback = (_place(flags.default_region, "region (configuration)", catalog),) if flags.default_region else ()
    alternatives = (
        replace(_machine(wanted, flags, catalog), infra=infra or wanted.infra or fallback) for wanted in spec.resources
    )
    return replace(
        limited(spec, flags),
        name=spec.name if flags.name is None else _name(flags.name),
        resources=tuple(dict.fromkeys(alternatives)),  # flags can make two of them the same
        envs=_envs(spec, flags.envs),
    )


def limited(spec: JobSpec, flags: Overrides) -> JobSpec:
    """The job with the limits of money and time that the flags name. Raises UsageError."""
    return replace(
        spec,
        budget_usd=spec.budget_usd if flags.budget is None else _usd(flags.budget, "--budget"),
        deadline_s=spec.deadline_s if flags.deadline is None else _duration(flags.deadline, "--deadline"),
        max_run_s=spec.max_run_s if flags.max_run is None else _duration(flags.max_run, "--max-run"),
        max_wait_s=spec.max_wait_s if flags.max_wait is None else _duration(flags.max_wait, "--max-wait"),
    )


def _machine(wanted: Resources, flags: Overrides, catalog: Catalog) -> Resources:
    """The alternative with what the flags say of the machine and its price."""
    if flags.gpu is not None or flags.instance_type is not None:
        gpu = None if flags.gpu is None else _accelerators(flags.gpu)
        instance_type = None if flags.instance_type is None else _instance_type(flags.instance_type, catalog)
        wanted = replace(wanted, accelerators=gpu, instance_type=instance_type)
    if flags.spot is not None:
        wanted = replace(wanted, use_spot=flags.spot)
    if flags.max_price is not None:
        wanted = replace(wanted, max_hourly_cost_usd=_usd(flags.max_price, "--max-price"))
    return wanted


def _accelerators(text: str) -> str:
    try:
        return canonical(parse(text))
    except AcceleratorError as error:
        raise UsageError(f"--gpu: {error}") from error


def _instance_type(name: str, catalog: Catalog) -> str:
    if catalog.instance(name) is None:
        near = nearest(name, (instance.name for instance in catalog.instances))
        hint = f"did you mean {near}?" if near else "ask for a GPU with --gpu, such as T4:1"
        raise UsageError(f"--instance-type: unknown instance type {name!r}: {hint}")
    return name


def _place(region: str, flag: str, catalog: Catalog) -> str:
    name = region.removeprefix("aws/")
    if name not in catalog.regions:
        near = nearest(name, sorted(catalog.regions))
        hint = f"did you mean {near}?" if near else f"known are {', '.join(sorted(catalog.regions))}"
        raise UsageError(f"{flag}: no prices are known for {region!r}: {hint}")
    return f"aws/{name}"


def _usd(text: str, flag: str) -> Decimal:
    amount = usd(text)
    if amount is None:
        raise UsageError(f"{flag} {text!r}: {USD_FORM}")
    return amount


def _duration(text: str, flag: str) -> float:
    seconds = duration_s(text)
    if seconds is None:
        raise UsageError(f"{flag} {text!r} is not a duration: {DURATION_FORM}")
    return seconds


def _name(text: str) -> str:
    if not is_name(text):
        raise UsageError(f"--name {text!r}: {NAME_FORM}")
    return text


def _envs(spec: JobSpec, pairs: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The file's variables with those of the flags: replaced where they stand, new ones last."""
    envs = dict(spec.envs)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--env {pair!r}: write NAME=VALUE, such as --env EPOCHS=10")
        if problem := env_problem(name):
            raise UsageError(f"--env: {problem}")
        if name in spec.secrets:
            raise UsageError(
                f"--env {name}: the job file takes it from your shell, as a secret: `export {name}=…` instead"
            )
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise UsageError(f"--env {name}: the value is not UTF-8 text")
        envs[name] = value
    return tuple(envs.items())
