"""Keys of the job file: each one is read, each slip of the finger is refused with the key that was meant."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from cloudtrain.provisioner.errors import EXIT_USAGE, UsageError
from cloudtrain.provisioner.jobfile import keys as job_keys
from cloudtrain.provisioner.jobfile.keys import (
    AWS,
    CHECKPOINT,
    JOB,
    MOUNT,
    RECOVERY,
    RESOURCES,
    SECTIONS,
    SKYPILOT,
    Section,
)
from cloudtrain.provisioner.jobfile.reader import loads
from cloudtrain.provisioner.spec import AwsOptions, FileMount, Interval, JobSpec, Recovery, Resources

NAME = Path("job.yaml")
FULL = (Path(__file__).parents[1] / "data" / "full_job.yaml").read_text()
LINES = FULL.splitlines()
FREE_FORM = {"envs", "file_mounts", "accelerators"}  # their keys are the user's own words


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        loads(text, path=NAME)
    assert caught.value.exit_code == EXIT_USAGE == 2
    message = str(caught.value)
    assert "\n" not in message
    return message


def keys(node: Node, section: str = "") -> Iterator[tuple[str, ScalarNode, Node]]:
    """Section, key and value of everything that the full job sets, but for the user's own words."""
    if isinstance(node, SequenceNode):
        for item in node.value:
            yield from keys(item, section)
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield section, key, value
            if key.value not in FREE_FORM:
                yield from keys(value, f"{section}.{key.value}".removeprefix("."))


ROOT = yaml.compose(FULL, Loader=yaml.SafeLoader)
assert ROOT is not None
KEYS = list(keys(ROOT))


def test_every_key_arrives() -> None:
    spot = Resources(
        accelerators="{A100:8, H100:8}",
        use_spot=True,
        infra=("aws/us-east-1",),
        instance_type="p4d.24xlarge",
        cpus="32+",
        memory="256+",
        max_hourly_cost_usd=Decimal(40),
    )
    on_demand = Resources(
        accelerators="H100:8",
        use_spot=False,
        infra=("aws/us-east-1", "aws/us-west-2/usw2-az2"),
        instance_type="p5.48xlarge",
        cpus="96+",
        memory="512+",
        max_hourly_cost_usd=Decimal("60.5"),
    )
    want = JobSpec(
        name="cifar-resnet",
        run="cd src\ntorchrun --nproc-per-node=8 train.py\n",
        resources=(on_demand, spot),
        resources_ordered=False,
        disk_size_gib=200,
        aws=AwsOptions(
            image_id="ami-0123456789abcdef0",
            ssh_user="ubuntu",
            subnet_ids=("subnet-0123456789abcdef0",),
            public_ip=False,
            ssh_proxy="me@bastion.example.com:2222",
            iam_instance_profile="my-machines",
            volume_throughput=500,
            kms_key="alias/training",
        ),
        workdir="code",
        file_mounts=(FileMount("/data", "s3://my-bucket/imagenet"),),
        envs=(("EPOCHS", "10"), ("LR", "0.10"), ("NOTE", ""), ("ON", "no")),
        secrets=("WANDB_API_KEY",),
        setup="pip install -r requirements.txt",
        checkpoint_interval=Interval(steps=500),
        checkpoint_keep=5,
        deadline_s=36 * 3600.0,
        budget_usd=Decimal(250),
        max_run_s=30 * 3600.0,
        max_wait_s=12 * 3600.0,
        recovery=Recovery(max_failures=1, max_preemptions=20),
    )
    assert loads(FULL, path=NAME) == want
    assert loads(FULL.replace("any_of:", "ordered:"), path=NAME).resources_ordered


def test_the_full_job_has_every_served_key() -> None:
    used = {(section, key.value) for section, key, _ in KEYS}
    for section in (JOB, RESOURCES, AWS, CHECKPOINT, RECOVERY):
        assert {(section.path, key) for key in section.served if key != "ordered"} <= used
    assert {("resources.any_of", key) for key in job_keys.ALTERNATIVES[0].served} <= used


def with_key(key: ScalarNode, text: str) -> str:
    """The full job with another text in the place of one key."""
    lines = FULL.splitlines()
    line, at = key.start_mark.line, key.start_mark.column
    lines[line] = lines[line][:at] + text + lines[line][at + len(key.value) :]
    return "\n".join(lines)


def one_edit(key: str) -> list[str]:
    """Every key that is one letter away: left out, too many, wrong, or swapped with its neighbour."""
    letters = "aeinrstZ_-0"
    edits = [key[:i] + key[i + 1 :] for i in range(len(key))]
    edits += [key[:i] + key[i + 1] + key[i] + key[i + 2 :] for i in range(len(key) - 1)]
    edits += [key[:i] + c + key[i + 1 :] for i in range(len(key)) for c in letters]
    edits += [key[:i] + c + key[i:] for i in range(len(key) + 1) for c in letters]
    return [text for text in dict.fromkeys(edits) if text != key and not text.startswith("-")]


SLIPS = [("any_of", number) for number in range(len(KEYS))]
SLIPS += [("ordered", number) for number, (section, _, _) in enumerate(KEYS) if section == "resources.any_of"]


@pytest.mark.parametrize(("kind", "number"), SLIPS, ids=[f"{k}-{KEYS[n][0]}.{KEYS[n][1].value}" for k, n in SLIPS])
def test_every_slip_in_a_key_is_refused_with_the_key_that_was_meant(kind: str, number: int) -> None:
    section, key, _ = KEYS[number]
    path = section.replace("any_of", kind)
    at = f"job.yaml:{key.start_mark.line + 1}:{key.start_mark.column + 1}: unknown key "
    (mapping,) = (s for s in (*SECTIONS, *job_keys.ALTERNATIVES) if s.path == path)
    slips = one_edit(key.value)
    for slip in slips:
        assert f"`{key.value}`?" in job_keys.refusal(mapping, slip).partition(": did you mean ")[2], slip
    for slip in slips[:: len(slips) // 6]:  # the whole way, for some of them
        text = with_key(key, slip) if kind == "any_of" else with_key(key, slip).replace("any_of:", "ordered:")
        assert refusal(text).startswith(f"{at}`{slip}` in {path or 'a job file'}: did you mean `"), slip


@given(st.sampled_from(KEYS), st.data())
def test_a_second_slip_is_refused_as_well(found: tuple[str, ScalarNode, Node], data: st.DataObject) -> None:
    _, key, _ = found
    once = data.draw(st.sampled_from(one_edit(key.value)))
    assume(once)
    twice = data.draw(st.sampled_from(one_edit(once) or [once]))
    assume(twice.strip() and twice != key.value and twice not in {k.value for _, k, _ in KEYS})
    assert refusal(with_key(key, twice)).startswith(f"job.yaml:{key.start_mark.line + 1}:")


# What each key's value can't be. Where another type is fine (accelerators take each), only what is wrong is listed.
LIST, MAPPING, NUMBER, BOOLEAN, NOTHING, DATE = "[a]", "{a: 1}", "12", "yes", "~", "2026-11-30"
WRONG: dict[str, list[str]] = {
    "name": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING, DATE],
    "resources": [LIST, "text", NUMBER, BOOLEAN, NOTHING],
    "num_nodes": [LIST, MAPPING, "one", BOOLEAN, NOTHING, "1.5", "'1'"],
    "workdir": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING],
    "file_mounts": [LIST, "text", NUMBER, BOOLEAN, NOTHING],
    "/data": [LIST, NUMBER, BOOLEAN, NOTHING],
    "envs": [LIST, "text", NUMBER, BOOLEAN, NOTHING],
    "secrets": ["{A: x}", "12", BOOLEAN, NOTHING, "[]", "[[A]]"],
    "setup": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING],
    "run": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING],
    "checkpoint": [LIST, "text", NUMBER, BOOLEAN, NOTHING],
    "interval": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING],
    "keep": [LIST, MAPPING, "three", BOOLEAN, NOTHING, "1.5"],
    "deadline": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING, DATE],
    "budget": [LIST, MAPPING, "cheap", BOOLEAN, NOTHING, "0", "-5", "1e3", "250 EUR", "$0.00", "USD", "1_000"],
    "max_run": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING],
    "max_wait": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING],
    "recovery": [LIST, "text", NUMBER, BOOLEAN, NOTHING],
    "max_failures": [LIST, MAPPING, "some", BOOLEAN, NOTHING, "-1", "1.5", "unlimited"],
    "max_preemptions": [LIST, MAPPING, "many", BOOLEAN, NOTHING, "-1", "1.5"],
    "accelerators": ["8", BOOLEAN, NOTHING, "[]", "{}", "[[A100]]", "{A100: x}"],
    "use_spot": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING, "'true'"],
    "infra": [MAPPING, NUMBER, BOOLEAN, NOTHING, "[]", "[12]"],
    "cpus": [LIST, MAPPING, "many", BOOLEAN, NOTHING],
    "memory": [LIST, MAPPING, "much", BOOLEAN, NOTHING],
    "max_hourly_cost": [LIST, MAPPING, "cheap", BOOLEAN, NOTHING, "'40'"],
    "instance_type": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING],
    "any_of": [MAPPING, "text", NUMBER, BOOLEAN, NOTHING, "[]", "[text]", "[[a]]", "[~]"],
    "disk_size": [LIST, MAPPING, "big", BOOLEAN, NOTHING, "1.5"],
    "aws": [LIST, "text", NUMBER, BOOLEAN, NOTHING],
    "image_id": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING],
    "ssh_user": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING],
    "subnet_ids": [MAPPING, NUMBER, BOOLEAN, NOTHING, "[]", "[12]"],
    "public_ip": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING, "'false'"],
    "ssh_proxy": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING],
    "iam_instance_profile": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING],
    "volume_throughput": [LIST, MAPPING, "fast", BOOLEAN, NOTHING, "500.5"],
    "kms_key": [LIST, MAPPING, NUMBER, BOOLEAN, NOTHING, "training", "alias/aws/ebs", "'alias/a b'"],
}


def with_value(key: ScalarNode, value: Node, text: str) -> str:
    """The full job with another value, which stands on its key's line."""
    row, last = key.start_mark.line, value.end_mark
    head = f"{LINES[row][: key.end_mark.column]}: {text}"
    if last.line == row:
        return "\n".join([*LINES[:row], head + LINES[row][last.column :], *LINES[row + 1 :]])
    below = LINES[row + 1 :]
    while below and len(below[0]) - len(below[0].lstrip()) > key.start_mark.column:
        below.pop(0)
    return "\n".join([*LINES[:row], head, *below])


@pytest.mark.parametrize("number", range(len(KEYS)), ids=[f"{section}.{key.value}" for section, key, _ in KEYS])
def test_every_value_of_a_wrong_type_is_refused_at_its_place(number: int) -> None:
    _, key, value = KEYS[number]
    for wrong in WRONG[key.value]:
        columns = range(len(wrong)) if wrong[0] in "[{" else (0,)  # the place may be that of an entry
        places = {f"job.yaml:{key.start_mark.line + 1}:{key.end_mark.column + 3 + i}" for i in columns}
        assert ":".join(refusal(with_value(key, value, wrong)).split(":")[:3]) in places, wrong


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("accelerators: T4:1\n", "1:1: `accelerators` belongs under `resources`, not at the top level"),
        ("use_spot: true\n", "1:1: `use_spot` belongs under `resources`, not at the top level"),
        ("region: us-east-1\n", "1:1: `region` belongs under `resources`, not at the top level"),
        ("ssh_proxy: ssm\n", "1:1: `ssh_proxy` belongs under `resources.aws`, not at the top level"),
        ("keep: 3\n", "1:1: `keep` belongs under `checkpoint`, not at the top level"),
        ("network_tier: best\n", "1:1: `resources.network_tier` is not supported yet"),
        ("watch: out\n", "1:1: `checkpoint.watch` is not supported yet"),
        ("resources: {run: x}\n", "1:13: `run` belongs at the top level, not under `resources`"),
        ("resources: {budget: 5 USD}\n", "1:13: `budget` belongs at the top level, not under `resources`"),
        ("max_failures: 1\n", "1:1: `max_failures` belongs under `recovery`, not at the top level"),
        ("resources: {subnet_ids: a}\n", "1:13: `subnet_ids` belongs under `resources.aws`, not under `resources`"),
        (
            "resources: {aws: {disk_size: 1}}\n",
            "1:19: `disk_size` belongs under `resources`, not under `resources.aws`",
        ),
        ("checkpoint: {max_run: 1h}\n", "1:14: `max_run` belongs at the top level, not under `checkpoint`"),
        (
            "resources: {any_of: [{disk_size: 1}]}\n",
            "1:23: `disk_size` holds for every alternative: write it once under",
        ),
        (
            "resources: {ordered: [{aws: {}}]}\n",
            "1:24: `aws` holds for every alternative: write it once under `resources`, ",
        ),
        ("resources: {any_of: [{any_of: []}]}\n", "1:23: `any_of` holds for every alternative"),
        ("resources: {any_of: [{run: x}]}\n", "1:23: `run` belongs at the top level, not under `resources.any_of`"),
        (
            "acelerators: T4\n",
            "1:1: unknown key `acelerators` in a job file: did you mean `accelerators`, under `resources`?",
        ),
        ("resources: {max-hourly-cost: 1}\n", "did you mean `max_hourly_cost`?"),
        ("resources: {maxHourlyCost: 1}\n", "did you mean `max_hourly_cost`?"),
        ("resources: {gpu: T4}\n", "1:13: unknown key `gpu` in resources: did you mean `accelerators`?"),
        ("gpus: 8\n", "1:1: unknown key `gpus` in a job file: did you mean `accelerators`, under `resources`?"),
        ("command: x\n", "1:1: unknown key `command` in a job file: did you mean `run`?"),
        ("resources: {spot: true}\n", "did you mean `use_spot`?"),
        ("qqqqqqq: x\n", "1:1: unknown key `qqqqqqq` in a job file: known are name, resources, "),
    ],
)
def test_a_key_at_the_wrong_level_is_told_where_it_belongs(text: str, says: str) -> None:
    assert says in refusal(text)


@pytest.mark.parametrize("key", sorted(SKYPILOT))
@pytest.mark.parametrize("section", [JOB, RESOURCES, *job_keys.ALTERNATIVES, MOUNT], ids=lambda s: s.what)
def test_a_key_that_only_skypilot_has_is_named_with_what_to_do(key: str, section: Section) -> None:
    assert job_keys.refusal(section, key) == f"`{key}` is SkyPilot's and not cloudtrain's: {SKYPILOT[key]}"
