"""Flags over a job file: what each changes, in every alternative, and how each refuses."""

from __future__ import annotations

from dataclasses import fields, replace
from decimal import Decimal

import pytest

from cloudtrain.pricing import catalog
from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.jobfile.overrides import Overrides, apply
from cloudtrain.provisioner.plan import make_plan
from cloudtrain.provisioner.spec import JobSpec, Resources

CATALOG = catalog.load()
SPEC = JobSpec(
    name="digits",
    run="python train.py",
    resources=(
        Resources(accelerators="T4:1", use_spot=True, infra=("aws/us-east-1",), memory="16+"),
        Resources(instance_type="g5.xlarge", memory="16+"),
    ),
    envs=(("EPOCHS", "10"), ("SEED", "1")),
    secrets=("HF_TOKEN",),
    max_run_s=60.0,
)


def test_no_flags_change_nothing() -> None:
    assert apply(SPEC, Overrides(), CATALOG) == SPEC


def test_what_names_the_machine_applies_to_every_alternative() -> None:
    flags = Overrides(gpu="l4", spot=False, regions=("us-west-2", "aws/us-east-2"), max_price="$1.20")
    (one,) = apply(SPEC, flags, CATALOG).resources  # the two are the same now
    assert one == Resources(
        accelerators="L4:1",
        use_spot=False,
        infra=("aws/us-west-2", "aws/us-east-2"),
        memory="16+",
        max_hourly_cost_usd=Decimal("1.20"),
    )


def test_a_type_replaces_the_files_own_choice_of_machine() -> None:
    changed = apply(SPEC, Overrides(instance_type="g6.xlarge", spot=True), CATALOG)
    assert {(r.accelerators, r.instance_type, r.use_spot) for r in changed.resources} == {(None, "g6.xlarge", True)}
    both = apply(SPEC, Overrides(instance_type="g6.xlarge", gpu="L4:1"), CATALOG)
    assert {(r.accelerators, r.instance_type) for r in both.resources} == {("L4:1", "g6.xlarge")}


def test_the_configured_region_counts_only_where_nothing_names_a_place() -> None:
    places = [r.infra for r in apply(SPEC, Overrides(default_region="us-west-2"), CATALOG).resources]
    assert places == [("aws/us-east-1",), ("aws/us-west-2",)]
    flags = Overrides(default_region="us-west-2", regions=("eu-west-1",))
    assert {r.infra for r in apply(SPEC, flags, CATALOG).resources} == {("aws/eu-west-1",)}


def test_the_rest_of_the_job() -> None:
    flags = Overrides(name="other", max_run="2h", envs=("SEED=2", "NEW=a=b", "EMPTY="))
    changed = apply(SPEC, replace(flags, budget="$0.50", deadline="1d", max_wait="15m"), CATALOG)
    assert (changed.name, changed.max_run_s) == ("other", 7200.0)
    assert (changed.budget_usd, changed.deadline_s, changed.max_wait_s) == (Decimal("0.50"), 86400.0, 900.0)
    assert changed.envs == (("EPOCHS", "10"), ("SEED", "2"), ("NEW", "a=b"), ("EMPTY", ""))


def test_every_flag_has_its_effect_on_the_plan() -> None:
    base = make_plan(replace(SPEC, resources=SPEC.resources[:1]), CATALOG, cloud="aws")
    west = make_plan(
        apply(SPEC, Overrides(gpu="T4:1", spot=False, regions=("us-west-2",)), CATALOG), CATALOG, cloud="aws"
    )
    assert {o.pool.region for o in base.offerings} == {"us-east-1"}
    assert {(o.pool.region, str(o.pool.capacity_type)) for o in west.offerings} == {("us-west-2", "on-demand")}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (Overrides(gpu="A1000:8"), ("--gpu", "A100")),
        (Overrides(gpu="T4:0"), ("--gpu",)),
        (Overrides(instance_type="g4dn.xlrge"), ("--instance-type", "did you mean g4dn.xlarge?")),
        (Overrides(instance_type="?"), ("--instance-type", "--gpu")),
        (Overrides(regions=("us-eats-1",)), ("--region", "did you mean us-east-1?")),
        (Overrides(regions=("gcp/us-east1",)), ("--region", "us-east-1")),
        (Overrides(default_region="us-wets-2"), ("region (configuration)", "did you mean us-west-2?")),
        (Overrides(max_price="cheap"), ("--max-price 'cheap'", "1.20")),
        (Overrides(max_price="0"), ("--max-price '0'", "above zero")),
        (Overrides(max_price="NaN"), ("--max-price", "above zero")),
        (Overrides(max_price="1_000"), ("--max-price", "above zero")),
        (Overrides(max_price="1e309"), ("--max-price", "above zero")),
        (Overrides(max_price="1,20"), ("--max-price", "1.20")),
        (Overrides(budget="250 EUR"), ("--budget '250 EUR'", "250 USD")),
        (Overrides(budget="0"), ("--budget '0'", "above zero")),
        (Overrides(deadline="tomorrow"), ("--deadline 'tomorrow'", "90s, 15m, 2h or 1d")),
        (Overrides(max_wait="0"), ("--max-wait '0'", "90s, 15m, 2h or 1d")),
        (Overrides(max_run="2 hours"), ("--max-run '2 hours'", "90s, 15m, 2h or 1d")),
        (Overrides(max_run="0s"), ("--max-run",)),
        (Overrides(name="My Job"), ("--name 'My Job'", "a to z")),
        (Overrides(envs=("EPOCHS",)), ("--env 'EPOCHS'", "NAME=VALUE")),
        (Overrides(envs=("1A=2",)), ("--env", "'1A'")),
        (Overrides(envs=("CLOUDTRAIN_JOB_ID=x",)), ("--env", "set by cloudtrain")),
        (Overrides(envs=("A=\udcff",)), ("--env A", "UTF-8")),
        (Overrides(envs=("HF_TOKEN=x",)), ("--env HF_TOKEN", "as a secret: `export HF_TOKEN=…`")),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_line_that_names_the_flag(flags: Overrides, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        apply(SPEC, flags, CATALOG)
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line


def test_every_flag_is_tried_above() -> None:
    tried = {"gpu", "instance_type", "spot", "regions", "max_price", "name", "envs", "default_region"}
    tried |= {"budget", "deadline", "max_run", "max_wait"}
    assert {field.name for field in fields(Overrides)} == tried
