"""The job file: what is read, and where each wrong file is refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.jobfile import keys as job_keys
from cloudtrain.provisioner.jobfile.reader import loads
from cloudtrain.provisioner.spec import FileMount, Interval, JobSpec, Recovery, Resources

NAME = Path("job.yaml")
GPU = "resources: {accelerators: T4:1}\n"
FULL = (Path(__file__).parents[1] / "data" / "full_job.yaml").read_text()


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        loads(text, path=NAME)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_is_left_out_has_a_default() -> None:
    spec = loads(GPU + "run: x", path=Path("dir/My_First job.yaml"))
    assert spec == JobSpec(name="my-first-job", run="x", resources=(Resources(accelerators="T4:1"),))
    assert spec.resources[0].use_spot is False


@pytest.mark.parametrize(("text", "want"), [("minGPT-ddp", "mingpt-ddp"), ("a_b.c", "a-b-c"), ("'7'", "7")])
def test_a_name_is_written_small(text: str, want: str) -> None:
    assert loads(f"{GPU}run: x\nname: {text}", path=NAME).name == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("A100:8", "A100:8"),
        ("t4", "T4:1"),
        ('"24GB+:1"', "24GB+:1"),
        ("24GB+:1", "24GB+:1"),
        ("{A100: 8, H100: 8}", "{A100:8, H100:8}"),
        ("{A100:8, H100:8}", "{A100:8, H100:8}"),
        ("[H100:8, A100:8]", "[H100:8, A100:8]"),
        ("\n    - H100:8\n    - A100:8", "[H100:8, A100:8]"),
        ("\n    A100: 8\n    H100: 8", "{A100:8, H100:8}"),
        ("{A100: 8}", "A100:8"),
    ],
)
def test_accelerators_in_each_form(text: str, want: str) -> None:
    assert loads(f"resources:\n  accelerators: {text}\nrun: x", path=NAME).resources[0].accelerators == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("90s", Interval(seconds=90)),
        ("10m", Interval(seconds=600)),
        ("1d", Interval(seconds=86400)),
        ("1 step", Interval(steps=1)),
        ("500 steps", Interval(steps=500)),
    ],
)
def test_intervals(text: str, want: Interval) -> None:
    spec = loads(f"{GPU}run: x\ncheckpoint:\n  interval: {text}", path=NAME)
    assert spec.checkpoint_interval == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ('"10"', "10"),
        ("10", "10"),
        ("1.50", "1.50"),
        ("-3", "-3"),
        ("1e-4", "1e-4"),
        ("1.0e-4", "1.0e-4"),
        ("a b", "a b"),
        ("'no'", "no"),
        ("'012'", "012"),
        ("''", ""),
        ("y", "y"),
        ("2026-01-01T", "2026-01-01T"),
    ],
)
def test_environment_values_are_kept_as_written(value: str, want: str) -> None:
    assert loads(f"{GPU}run: x\nenvs:\n  A: {value}", path=NAME).envs == (("A", want),)


RUN = GPU + "run: x\n"  # two lines, so that the text after it stands in line 3
BAD = [
    # the text, the place, a part of the message
    ("", "1:1", "the file is empty"),
    ("# nothing\n", "1:1", "the file is empty"),
    ("- run: x", "1:1", "not a list"),
    ("run", "1:1", "not text"),
    ("run: x", "1:1", "no GPU asked for"),
    ("run: x\nresources: {use_spot: true}", "2:12", "no GPU asked for"),
    (GPU, "1:1", "`run` is missing"),
    (GPU + "run:", "2:5", "run has no value"),
    (GPU + "run: ~", "2:6", "run has no value"),
    (GPU + "run: ' '", "2:6", "run is empty"),
    (GPU + "run: [python, train.py]", "2:6", "run must be text, not a list"),
    (GPU + "run: 22:30", "2:6", "YAML reads 22:30 as a number: put it in quotes"),
    (RUN + "nme: x", "3:1", "unknown key `nme` in a job file: did you mean `name`?"),
    (RUN + "Name: x", "3:1", "did you mean `name`?"),
    (RUN + "zzzz: x", "3:1", "known are name, resources,"),
    (RUN + "file_mount: {}", "3:1", "did you mean `file_mounts`?"),
    (RUN + "name: a\nrun: y", "4:1", "`run` is already set in line 2"),
    (
        RUN + "name: my job",
        "3:7",
        "name 'my job': use a to z, 0 to 9 and `-`, at most 41, not `-` first; write `name: my-job`",
    ),
    (RUN + "name: -a", "3:7", "use a to z"),
    (RUN + f"name: {'a' * 42}", "3:7", "at most 41"),
    (RUN + 'name: "a\\n"', "3:7", "use a to z"),
    (RUN + "name: 7", "3:7", "YAML reads 7 as a number: put it in quotes"),
    (RUN + "name: no", "3:7", "YAML reads no as true or false: put it in quotes"),
    (RUN + "name: 2026-01-01", "3:7", "as a date: put it in quotes"),
    (RUN + "num_nodes: 2", "3:12", "not supported yet"),
    (RUN + "num_nodes: 0", "3:12", "at least 1"),
    (RUN + "num_nodes: '1'", "3:12", "whole number"),
    (RUN + "num_nodes: 01", "3:12", "whole number"),
    (RUN + "num_nodes: 1.0", "3:12", "whole number"),
    (RUN + "num_nodes: true", "3:12", "whole number"),
    (RUN + "workdir: ''", "3:10", "workdir is empty"),
    (RUN + "workdir: {}", "3:10", "workdir must be text, not a mapping"),
    (RUN + "envs: [A]", "3:7", "envs must hold `key: value` lines, not a list"),
    (RUN + "envs: {A: no}", "3:11", "envs.A: YAML reads no as true or false"),
    (RUN + "envs: {A: 012}", "3:11", "envs.A: YAML reads 012 as a number"),
    (RUN + "envs: {A: 22:30}", "3:11", "envs.A: YAML reads 22:30 as a number"),
    (RUN + "envs: {A: 0x1F}", "3:11", "put it in quotes"),
    (RUN + "envs: {A: 1_000}", "3:11", "put it in quotes"),
    (RUN + "envs: {A: .inf}", "3:11", "put it in quotes"),
    (RUN + "envs: {A: 2026-01-01}", "3:11", "as a date"),
    (RUN + "envs: {A: [1]}", "3:11", "not a list"),
    (RUN + 'envs: {A: "1", A: "2"}', "3:16", "`A` is already set in line 3"),
    (RUN + "envs: {1A: x}", "3:8", "can't name an environment variable"),
    (RUN + "envs: {CLOUDTRAIN_JOB_ID: x}", "3:8", "set by cloudtrain"),
    (RUN + "envs: {? [A] : x}", "3:10", "must be one word, not a list"),
    (RUN + 'envs: {A: "a\\0b"}', "3:11", "U+0000"),
    (RUN + 'envs: {A: "\\ud800"}', "3:11", "U+D800"),
    (RUN + 'envs: {A: "\\U00110000"}', "3:14", "not valid YAML"),
    (RUN + "checkpoint: 10m", "3:13", "not text"),
    (RUN + "checkpoint: {intervall: 10m}", "3:14", "did you mean `interval`?"),
    (RUN + "checkpoint: {interval: auto}", "3:24", "not supported yet"),
    (RUN + "checkpoint: {interval: 10}", "3:24", "YAML reads 10 as a number"),
    (RUN + "checkpoint: {interval: 22:30}", "3:24", "YAML reads 22:30 as a number"),
    (RUN + "checkpoint: {interval: 0m}", "3:24", "write 90s, 10m, 2h or 500 steps"),
    (RUN + "checkpoint: {interval: 500 stepz}", "3:24", "write 90s, 10m, 2h or 500 steps"),
    (RUN + "checkpoint: {keep: 0}", "3:20", "at least 1"),
    (RUN + "checkpoint: {keep: many}", "3:20", "whole number"),
    (RUN + "max_run: 90", "3:10", "put it in quotes"),
    (RUN + "max_run: 1.5h", "3:10", "write 90s, 15m, 2h or 1d"),
    (RUN + "max_run: 2H", "3:10", "write 90s, 15m, 2h or 1d"),
    ("run: x\nresources: [T4]", "2:12", "not a list"),
    ("run: x\nresources:\n  acelerators: T4", "3:3", "did you mean `accelerators`?"),
    ("run: x\nresources:\n  accelerators: T5:1", "3:17", "did you mean T4?"),
    ("run: x\nresources:\n  accelerators: 8", "3:17", "put it in quotes"),
    ("run: x\nresources:\n  accelerators: {T4: 0}", "3:22", "at least 1"),
    ("run: x\nresources:\n  accelerators: {T4: 012}", "3:22", "whole number"),
    ("run: x\nresources:\n  accelerators: {}", "3:17", "no accelerator named"),
    ("run: x\nresources:\n  accelerators: [T4: 1]", "3:18", "must be text, not a mapping"),
    ("run: x\nresources:\n  use_spot: auto", "3:13", "not supported yet"),
    ("run: x\nresources:\n  use_spot: yes", "3:13", "must be true or false, not 'yes'"),
    ("run: x\nresources:\n  use_spot: 'true'", "3:13", "must be true or false"),
    ("run: x\nresources:\n  infra: gcp/us-central1", "3:10", "not supported yet"),
    ("run: x\nresources:\n  infra: aws/us-east-1a", "3:10", "aws/REGION"),
    ("run: x\nresources:\n  infra: [aws, aws/]", "3:16", "aws/REGION"),
    ("run: x\nresources:\n  infra: local", "3:10", "--cloud local"),
    ("run: x\nresources:\n  infra: []", "3:10", "infra is empty"),
    ("run: x\nresources:\n  cpus: 8-", "3:9", "8+ for at least 8"),
    ("run: x\nresources:\n  cpus: 010", "3:9", "put it in quotes"),
    ("run: x\nresources:\n  memory: 16 gigs", "3:11", "is not an amount"),
    ("run: x\nresources:\n  disk_size: 200GB+", "3:14", "whole number"),
    ("run: x\nresources:\n  disk_size: 1_000", "3:14", "whole number"),
    ("run: x\nresources:\n  max_hourly_cost: 40 USD", "3:20", "plain number (USD per hour)"),
    ("run: x\nresources:\n  max_hourly_cost: 0", "3:20", "above zero"),
    ("run: x\nresources:\n  max_hourly_cost: .nan", "3:20", "plain number"),
    ("run: x\nresources:\n\taccelerators: T4", "3:1", "no tab"),
    ("run: x\nresources:\n  accelerators:\tT4", "3:16", "no tab"),
    ("run: python: train", "1:12", "put the value in quotes"),
    ("run: [x", "1:8", "not valid YAML"),
    ("run: 'x", "1:8", "not valid YAML"),
    ("run: @x", "1:6", "not valid YAML"),
    ("run: x\x07", "1:7", "U+0007"),
    ("a: 1\r\nrun: x\x07", "2:7", "U+0007"),
    ("run: x\n---\nrun: y", "2:1", "a second document"),
    ("run: &x y", "1:6", "anchors and aliases"),
    ("run: *x", "1:6", "anchors and aliases"),
    ("a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]", "1:4", "anchors and aliases"),
    ("run: !!python/object/apply:os.system [x]", "1:6", "tags such as"),
    ("run: !!str 1", "1:6", "tags such as"),
    ("<<: {run: x}", "1:1", "merge keys"),
    ("run: " + "[" * 1000, "1:15", "nested deeper"),
    ("? {a: b}\n: c", "1:3", "must be one word, not a mapping"),
    ("run: " + "x" * 300_000, "1:1", "longer than 256 KiB"),
]


@pytest.mark.parametrize(("text", "place", "says"), BAD, ids=range(len(BAD)))
def test_a_wrong_file_is_refused_at_its_place(text: str, place: str, says: str) -> None:
    message = refusal(text)
    assert message.startswith(f"job.yaml:{place}: ")
    assert says in message


LATER = [(key, section.path, f"{section.prefix}{key}") for section in job_keys.SECTIONS for key in section.later]


@pytest.mark.parametrize(("key", "parent", "shown"), LATER)
def test_a_key_of_a_later_version_is_never_ignored(key: str, parent: str, shown: str) -> None:
    text = f"{parent}:\n  {key}: x" if parent else f"{key}: x"
    message = refusal(f"run: x\n{text}\n")
    assert message.startswith(f"job.yaml:{3 if parent else 2}:{3 if parent else 1}: `{shown}` is not supported yet")


DESIGN_EXAMPLE = """\
name: cifar-resnet
resources:
  accelerators: A100:8
  use_spot: true
  infra: aws/us-east-1
  cpus: 32+
  memory: 256+
  disk_size: 200
  max_hourly_cost: 40
num_nodes: 1
workdir: .
file_mounts:
  /data: s3://bucket/data
envs: {EPOCHS: "10"}
secrets: [WANDB_API_KEY]
setup: pip install -r requirements.txt
run: torchrun --nproc-per-node=8 train.py
checkpoint:
  interval: 10m
  keep: 3
deadline: 36h
budget: 250 USD
max_run: 30h
max_wait: 12h
recovery: {max_failures: 1, max_preemptions: unlimited}
"""


def test_the_design_example() -> None:
    assert loads(DESIGN_EXAMPLE, path=NAME) == JobSpec(
        name="cifar-resnet",
        run="torchrun --nproc-per-node=8 train.py",
        resources=(
            Resources(
                accelerators="A100:8",
                use_spot=True,
                infra=("aws/us-east-1",),
                cpus="32+",
                memory="256+",
                max_hourly_cost_usd=Decimal(40),
            ),
        ),
        disk_size_gib=200,
        workdir=".",
        file_mounts=(FileMount("/data", "s3://bucket/data"),),
        envs=(("EPOCHS", "10"),),
        secrets=("WANDB_API_KEY",),
        setup="pip install -r requirements.txt",
        checkpoint_interval=Interval(seconds=600),
        checkpoint_keep=3,
        deadline_s=36 * 3600.0,
        budget_usd=Decimal(250),
        max_run_s=30 * 3600.0,
        max_wait_s=12 * 3600.0,
        recovery=Recovery(max_failures=1, max_preemptions=None),
    )


@pytest.mark.parametrize(
    ("written", "usd"),
    [("250 USD", "250"), ("250", "250"), ("$250", "250"), ("0.50 USD", "0.50"), ("0.5", "0.5"), ("'250USD'", "250")],
)
def test_a_budget_is_read_exactly(written: str, usd: str) -> None:
    assert str(loads(RUN + f"budget: {written}", path=NAME).budget_usd) == usd


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        loads(text, path=NAME)
    except UsageError as error:
        assert str(error).startswith("job.yaml:")


@given(st.integers(0, len(FULL)), st.integers(0, 3), st.text(alphabet="{}[]:-#&*!|>'\"%@`,? \n\t\\xU0~<=", max_size=3))
def test_any_damage_is_read_or_refused(at: int, drop: int, insert: str) -> None:
    try:
        loads(FULL[:at] + insert + FULL[at + drop :], path=NAME)
    except UsageError as error:
        assert str(error).startswith("job.yaml:")


def test_a_file_name_that_gives_no_name_asks_for_one() -> None:
    with pytest.raises(UsageError, match="`name` is missing"):
        loads(RUN, path=Path("数据.yaml"))
