"""SkyPilot's task files: common ones are read and planned as they are, others are refused by the name of what we lack.

The files in tests/data/skypilot have the keys and the structure of its public examples (llm/ and examples/ of its
repository, read 2026-11) in our own words.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cloudtrain.pricing import catalog
from cloudtrain.pricing.model import CapacityType
from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.jobfile.reader import load, loads
from cloudtrain.provisioner.plan import Plan, make_plan
from cloudtrain.provisioner.spec import FileMount, JobSpec

FILES = sorted((Path(__file__).parents[1] / "data" / "skypilot").glob("*.yaml"))
BESIDE = ("code", "configs", "mistral", "sft", "images")


def read(name: str, folder: Path) -> tuple[JobSpec, Plan]:
    """The file, read beside the folders that it names, and its plan."""
    for beside in BESIDE:
        (folder / beside).mkdir(exist_ok=True)
    (folder / "prompt.txt").touch()
    (path,) = (file for file in FILES if file.stem == name)
    spec = load(Path(shutil.copy(path, folder)))
    return spec, make_plan(spec, catalog.load(), cloud="aws")


def test_there_are_at_least_ten() -> None:
    assert len(FILES) >= 10


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_a_common_file_is_read_and_planned_as_it_is(name: str, tmp_path: Path) -> None:
    spec, plan = read(name, tmp_path)
    assert plan.offerings
    assert spec.run


def test_what_some_of_them_mean(tmp_path: Path) -> None:
    spec, _ = read("mingpt", tmp_path)
    assert spec.name == "mingpt-ddp"

    spec, plan = read("lora_8b", tmp_path)
    assert (spec.name, spec.secrets, spec.aws.volume_throughput) == ("lora-8b", ("HF_TOKEN",), 400)
    assert spec.file_mounts == (FileMount("/configs", str(tmp_path / "configs")),)
    assert {o.instance.name for o in plan.offerings} == {"p4d.24xlarge"}

    spec, plan = read("text_vectors", tmp_path)
    assert spec.envs[0] == ("START_IDX", "0")
    assert {o.pool.capacity_type for o in plan.offerings} == set(CapacityType)

    spec, plan = read("gpt2", tmp_path)
    regions = [o.pool.region for o in plan.offerings]
    assert list(dict.fromkeys(regions))[:2] == ["us-east-1", "us-west-2"]
    assert len(set(regions)) > 2

    spec, plan = read("imagenet_spot", tmp_path)
    assert spec.file_mounts == (FileMount("/data", "s3://my-imagenet/train"),)
    assert {o.pool.region for o in plan.offerings} == {"us-east-2"}

    spec, _ = read("sft_20b", tmp_path)
    assert (spec.disk_size_gib, spec.envs[-1]) == (512, ("WANDB_API_KEY", ""))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num_nodes: 2", "3:12: more than one node is not supported yet"),
        ("service: {readiness_probe: /v1/models, replicas: 2}", "3:1: `service` is SkyPilot's"),
        ("config: {docker: {run_options: x}}", "3:1: `config` is SkyPilot's"),
        ("volumes: {/mnt/data: my-volume}", "3:1: `volumes` is SkyPilot's"),
        ("inputs: {s3://bucket: 10}", "3:1: `inputs` is SkyPilot's"),
        (
            "image_id: docker:some/image",
            "3:1: `image_id` is SkyPilot's and not cloudtrain's: write `aws: {image_id: ami-...}`",
        ),
        ("workdir: {url: https://github.com/a/b, ref: main}", "3:10: workdir must be text, not a mapping: clone"),
        ("file_mounts:\n  /out: {name: my-bucket, store: s3, mode: MOUNT}", "4:10: `name` is SkyPilot's"),
        ("file_mounts:\n  /out: {source: s3://bucket, mode: MOUNT_CACHED}", "4:37: mode 'MOUNT_CACHED' is not"),
        ("file_mounts:\n  /data: gs://bucket", "4:10: 'gs://bucket': gs:// is not supported"),
        ("secrets: {HF_TOKEN: hf_abc}", "3:21: secrets.HF_TOKEN: a secret's value doesn't belong in a file"),
    ],
)
def test_a_file_with_more_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        loads(f"run: x\nresources: {{accelerators: T4}}\n{text}\n", path=Path("job.yaml"))
    assert str(caught.value).startswith(f"job.yaml:{says}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ports: 8080", "`ports` is SkyPilot's and not cloudtrain's: no port is opened"),
        ("autostop: {idle_minutes: 10, down: true}", "`autostop` is SkyPilot's"),
        ("job_recovery: {strategy: FAILOVER}", "`job_recovery` is SkyPilot's"),
        ("job_recovery: none", "`job_recovery` is SkyPilot's"),
        ("labels: {project: x}", "`labels` is SkyPilot's"),
        ("image_id: docker:some/image", "`image_id` is SkyPilot's"),
        (
            "accelerator_args: {runtime_version: x}",
            "`accelerator_args` is SkyPilot's and not cloudtrain's: it is for TPUs",
        ),
        ("network_tier: best", "`resources.network_tier` is not supported yet"),
        (
            "candidates: [{accelerators: T4}]",
            "`candidates` is SkyPilot's and not cloudtrain's: write the list under `any_of`",
        ),
        ("infra: gcp/us-central1", "infra 'gcp/us-central1': 'gcp' is not supported yet"),
        ("infra: k8s", "infra 'k8s': 'k8s' is not supported yet"),
        ("cloud: lambda", "infra 'lambda': 'lambda' is not supported yet"),
        ("zone: us-east-1a\n  region: us-east-1", "us-east-1a is another zone in each account"),
        ("any_of: [{cloud: gcp, image_id: x}]", "`image_id` is SkyPilot's"),
    ],
)
def test_resources_with_more_are_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        loads(f"run: x\nresources:\n  accelerators: T4\n  {text}\n", path=Path("job.yaml"))
    assert says in str(caught.value)
