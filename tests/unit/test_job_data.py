"""`file_mounts`, `envs`, `secrets` and the scripts of a job file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.jobfile.reader import load, loads
from cloudtrain.provisioner.spec import FileMount, JobSpec
from cloudtrain.trainer.contract import mount_target_trouble

GPU = "resources: {accelerators: T4:1}\n"


def read(text: str) -> JobSpec:
    """A job with the text, which starts in line 2."""
    return loads(f"{GPU}{text}\nrun: x\n", path=Path("job.yaml"))


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix("job.yaml:")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("/data: s3://bucket", FileMount("/data", "s3://bucket")),
        ("/data: s3://bucket/", FileMount("/data", "s3://bucket")),
        ("/data: s3://bucket/a/b", FileMount("/data", "s3://bucket/a/b")),
        ("/data: s3://bucket/a/b/", FileMount("/data", "s3://bucket/a/b/")),
        ("//data/./x/: ./here", FileMount("/data/x", "./here")),
        ("~/.cache/huggingface: ~/models", FileMount("~/.cache/huggingface", "~/models")),
        ("data/train: x", FileMount("data/train", "x")),
        ("./data: x", FileMount("data", "x")),
        ("/home/ubuntu/data: x", FileMount("/home/ubuntu/data", "x")),
        ("/mnt/数据 1: a b", FileMount("/mnt/数据 1", "a b")),
        ("/data: {source: s3://bucket/x, mode: COPY}", FileMount("/data", "s3://bucket/x")),
        ("/data: {source: ./x, mode: copy, store: S3}", FileMount("/data", "./x")),
    ],
)
def test_a_mount(text: str, want: FileMount) -> None:
    (mount,) = read(f"file_mounts:\n  {text}").file_mounts
    assert mount == want
    assert mount_target_trouble(mount.target) is None


def test_mounts_keep_their_order_and_may_stand_beside_each_other() -> None:
    spec = read("file_mounts:\n  /data: a\n  /data2: b\n  data: c\n  ~/data: d\n  /x/data: e")
    assert [mount.source for mount in spec.file_mounts] == ["a", "b", "c", "d", "e"]


def test_variables_of_envs_are_filled_in() -> None:
    spec = read("file_mounts:\n  /models/${SIZE}: s3://$BUCKET/models-$SIZE\nenvs: {SIZE: 8b, BUCKET: mine}")
    assert spec.file_mounts == (FileMount("/models/8b", "s3://mine/models-8b"),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/: x", "3:3: no data can be put at '/': it is the system's own"),
        ("/etc: x", "'/etc': it is the system's own"),
        ("/usr/share/data: x", "it is the system's own"),
        ("/proc/1: x", "it is the system's own"),
        ("/opt/pytorch/lib: x", "it is the system's own"),
        ("/var/lib/cloudtrain: x", "it is the system's own"),
        ("/tmp: x", "it is the system's own"),
        ("/home: x", "it is the system's own"),
        ("/home/ubuntu/: x", "it is the home folder itself"),
        ("~/: x", "it is the home folder itself"),
        ('"~": x', "it is the home folder itself"),
        ("~/.ssh: x", "the way into the machine"),
        ("~/cloudtrain/work: x", "it is the agent's own"),
        ("/home/ubuntu/.ssh/keys: x", "the way into the machine"),
        ("~bob/data: x", "it must be absolute, below ~/, or relative to the job's folder"),
        ("/data/../etc: x", "without `..`"),
        ("../data: x", "without `..`"),
        (".: x", "it is the job's folder itself"),
        ("'': x", "it is empty"),
        ('"/a\\nb": x', "holds a control character"),
        ("/data: x\n  /data: y", "4:3: `/data` is already set in line 3"),
        ("/data: x\n  /data/: y", "4:3: /data/ is the same as /data of line 3"),
        ("/data: x\n  /data/train: y", "4:3: /data/train is inside /data of line 3"),
        ("/data/train: x\n  /data: y", "4:3: /data is around /data/train of line 3"),
        ("/data:", "3:9: file_mounts of /data has no value"),
        ("/data: [x]", "3:10: file_mounts of /data must be text, not a list"),
        ("/data: gs://bucket/x", "3:10: 'gs://bucket/x': gs:// is not supported: write s3://BUCKET/PREFIX or a local"),
        ("/data: https://x.org/y", "https:// is not supported"),
        ("/data: s3://", "'' can't be a bucket's name"),
        ("/data: s3://Bucket/x", "'Bucket' can't be a bucket's name"),
        ("/data: s3://a_b/x", "can't be a bucket's name"),
        ("/data: s3://10.0.0.1/x", "can't be a bucket's name"),
        ("/data: s3://xn--a/x", "can't be a bucket's name"),
        ("/data: s3://a..b/x", "can't be a bucket's name"),
        ("/data: s3://bucket/a//b", "the prefix has an empty part, `.` or `..`"),
        ("/data: s3://bucket/../b", "the prefix has an empty part, `.` or `..`"),
        ("/data: s3://$BUCKET/x", "3:10: $BUCKET has no value under envs: write it there, or here"),
        ("/data/${SIZE}: x", "3:3: ${SIZE} has no value under envs"),
        ("/data: {source: s3://bucket}", "no `mode` means MOUNT in SkyPilot: data is copied, buckets are not mounted"),
        ("/data: {source: s3://bucket, mode: MOUNT}", "3:38: mode 'MOUNT' is not supported: data is copied"),
        ("/data: {source: s3://bucket, mode: MOUNT_CACHED}", "mode 'MOUNT_CACHED' is not supported"),
        ("/data: {mode: COPY}", "`source` is missing"),
        ("/data: {source: x, mode: COPY, store: gcs}", "store 'gcs' is not supported: write s3, or take it out"),
        (
            "/out: {name: my-bucket, mode: MOUNT}",
            "3:10: `name` is SkyPilot's and not cloudtrain's: there are no buckets",
        ),
        ("/out: {source: x, mode: COPY, persistent: true}", "`persistent` is SkyPilot's"),
        ("/out: {sources: x}", "unknown key `sources` in file_mounts: did you mean `source`?"),
    ],
)
def test_a_wrong_mount(text: str, says: str) -> None:
    assert says in refusal(f"file_mounts:\n  {text}")


def test_a_local_source_is_taken_from_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "vocab.txt").touch()
    path = tmp_path / "job.yaml"
    path.write_text(f"{GPU}run: x\nfile_mounts: {{/data: ./data, ~/vocab.txt: vocab.txt, /s3: s3://bucket}}\n")
    assert load(path).file_mounts == (
        FileMount("/data", str(tmp_path / "data")),
        FileMount("~/vocab.txt", str(tmp_path / "vocab.txt")),
        FileMount("/s3", "s3://bucket"),
    )


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("absent", "does not exist: create it, or take /data out"),
        ("/dev/null", "is neither a file nor a folder"),
        ("loop", "can't be used"),
        ("x" * 5000, "can't be used"),
    ],
)
def test_a_local_source_that_cannot_be_sent(source: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    path = tmp_path / "job.yaml"
    path.write_text(f"{GPU}run: x\nfile_mounts:\n  /data: {source}\n")
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:4:10: the source ")
    assert says in str(caught.value)


@given(st.text(alphabet="/~.ab \n\0é", max_size=12))
def test_a_target_that_is_read_is_one_that_the_agent_takes(target: str) -> None:
    quoted = target.translate({ord("\n"): "\\n", 0: "\\0"})
    try:
        (mount,) = read(f'file_mounts:\n  "{quoted}": x').file_mounts
    except UsageError as error:
        assert str(error).startswith("job.yaml:3:3: ")
        return
    assert mount_target_trouble(mount.target) is None
    assert mount.target == mount.target.rstrip("/")


def test_secrets_are_names_alone() -> None:
    assert read("secrets: [WANDB_API_KEY, HF_TOKEN]").secrets == ("WANDB_API_KEY", "HF_TOKEN")
    assert read("secrets: HF_TOKEN").secrets == ("HF_TOKEN",)
    assert read("secrets:\n  WANDB_API_KEY:\n  HF_TOKEN: null").secrets == ("WANDB_API_KEY", "HF_TOKEN")


def test_a_variable_without_a_value_comes_from_where_you_launch() -> None:
    spec = read("envs: {SIZE: 8b, HF_TOKEN: , BUCKET: null}\nsecrets: [WANDB_API_KEY, HF_TOKEN]")
    assert spec.envs == (("SIZE", "8b"),)
    assert spec.secrets == ("WANDB_API_KEY", "HF_TOKEN", "BUCKET")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("secrets: {HF_TOKEN: hf_abc}", "2:21: secrets.HF_TOKEN: a secret's value doesn't belong in a file"),
        ("secrets: {HF_TOKEN: ''}", "a secret's value doesn't belong in a file"),
        ("secrets: [HF_TOKEN, HF_TOKEN]", "2:21: HF_TOKEN is already named in line 2: keep one"),
        ("secrets: [CLOUDTRAIN_JOB_ID]", "2:11: CLOUDTRAIN_JOB_ID: names with CLOUDTRAIN_ are set by cloudtrain"),
        ("secrets: [SKYPILOT_DOCKER_PASSWORD]", "names with SKYPILOT_ are SkyPilot's own"),
        ("secrets: [HF-TOKEN]", "2:11: 'HF-TOKEN' can't name an environment variable"),
        ("secrets: [1]", "2:11: secrets: YAML reads 1 as a number: put it in quotes"),
        ("secrets: []", "2:10: secrets is empty"),
        ("envs: {A: x}\nsecrets: [A]", "3:11: A is in envs too: keep it under secrets alone"),
        ("envs: {SKYPILOT_NODE_RANK: x}", "2:8: SKYPILOT_NODE_RANK: names with SKYPILOT_ are SkyPilot's own"),
    ],
)
def test_wrong_names(text: str, says: str) -> None:
    assert says in refusal(text)


def test_the_value_of_a_secret_is_not_in_the_refusal() -> None:
    assert "hf_abc" not in refusal("secrets: {HF_TOKEN: hf_abc}")


def test_scripts_use_only_variables_that_are_set() -> None:
    text = "setup: echo ${SKYPILOT_NODE_RANK} $SKYPILOT_NUM_NODES $SKYPILOT_NUM_GPUS_PER_NODE"
    assert read(text).setup == text.removeprefix("setup: ")
    assert refusal("setup: cat $SKYPILOT_CLUSTER_INFO").startswith(
        "2:8: setup uses SKYPILOT_CLUSTER_INFO, which is not set: of SkyPilot's SKYPILOT_NODE_IPS, "
    )
    assert refusal("setup: [a, b]").startswith("2:8: setup must be text, not a list: write the lines below `setup: |`")


def test_a_variable_that_no_process_could_be_started_with_is_refused_before_a_machine_is_paid_for() -> None:
    most = 128 * 1024 - len("BIG=") - 1
    assert read(f"envs: {{BIG: {'x' * most}}}").envs == (("BIG", "x" * most),)
    assert refusal(f"envs: {{BIG: {'x' * (most + 1)}}}").startswith("2:13: envs.BIG has more than 128 KiB")
