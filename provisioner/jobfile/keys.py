"""The job file's keys by section, and what to say of a key that is not one of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.provisioner.jobfile.values import nearest


@dataclass(frozen=True, slots=True)
class Section:
    """One mapping of the job file. ``path`` is "" at the top, "resources.aws" below.

    ``later``: keys of a later version. ``aliases``: SkyPilot's words for what has a key here; never suggested.
    """

    path: str
    served: tuple[str, ...]
    later: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """The section's name in a sentence."""
        return self.path or "a job file"

    @property
    def place(self) -> str:
        """Where a key of it stands, in a sentence."""
        return f"under `{self.path}`" if self.path else "at the top level"

    @property
    def prefix(self) -> str:
        """What stands before a key of it."""
        return f"{self.path}." if self.path else ""


JOB = Section(
    "",
    (
        "name",
        "resources",
        "num_nodes",
        "workdir",
        "file_mounts",
        "envs",
        "secrets",
        "setup",
        "run",
        "checkpoint",
        "deadline",
        "budget",
        "max_run",
        "max_wait",
        "recovery",
    ),
    later=(
        "trainer",
        "on_idle",
        "on_hang",
        "on_hot",
        "on_finish",
        "notify",
    ),
)
_SELECTING = ("accelerators", "use_spot", "infra", "cpus", "memory", "max_hourly_cost", "instance_type")
_PLACES = ("cloud", "region", "zone")  # SkyPilot's names before `infra`
RESOURCES = Section(
    "resources",
    (*_SELECTING, "any_of", "ordered", "disk_size", "aws"),
    later=("network_tier",),
    aliases=(*_PLACES, "disk_tier"),
)
AWS = Section(
    "resources.aws",
    (
        "image_id",
        "ssh_user",
        "subnet_ids",
        "public_ip",
        "ssh_proxy",
        "iam_instance_profile",
        "volume_throughput",
        "kms_key",
    ),
)
CHECKPOINT = Section(
    "checkpoint", ("interval", "keep"), later=("watch", "complete_when", "settle_seconds", "resume_args")
)
RECOVERY = Section("recovery", ("max_failures", "max_preemptions"))
SECTIONS = (JOB, RESOURCES, AWS, CHECKPOINT, RECOVERY)

ALTERNATIVES = tuple(
    Section(f"resources.{key}", _SELECTING, later=("network_tier",), aliases=_PLACES) for key in ("any_of", "ordered")
)
MOUNT = Section("file_mounts", ("source", "mode"), aliases=("store",))  # SkyPilot's long form of one mount

# SkyPilot's keys that we lack (its YAML reference, read 2026-11, and names that older files use), and what to do
# instead. The same answer in whichever section the key stands.
SKYPILOT = {
    "accelerator_args": "it is for TPUs, which AWS doesn't have: take it out",
    "autostop": "a machine ends with its job: take it out; `max_run` bounds its time",
    "candidates": "write the list under `any_of`",
    "config": "take it out; how AWS makes the machine is said under `resources.aws`",
    "event_callback": "take it out",
    "experimental": "take it out; how AWS makes the machine is said under `resources.aws`",
    "image_id": "write `aws: {image_id: ami-...}` under `resources`; containers are not supported",
    "inputs": "bring data with `file_mounts`",
    "job_recovery": "a reclaimed job always starts again elsewhere, a failed one by `recovery: {max_failures: 1}`",
    "labels": "the tags of a machine are cloudtrain's own: take it out",
    "local_disk": "instance NVMe is used where there is some: take it out",
    "options": "write the list under `any_of`",
    "outputs": "what is written to $CLOUDTRAIN_OUTPUT_DIR comes home",
    "pool": "take it out",
    "ports": "no port is opened: take it out; `cloudtrain tunnel` brings one to you",
    "priority": "take it out",
    "service": "cloudtrain trains and serves nothing: take it out",
    "spot_recovery": "a job is always launched again elsewhere after a reclaim: take it out",
    "volumes": "bring data with `file_mounts`; what must survive goes to $CLOUDTRAIN_OUTPUT_DIR",
}

_SKYPILOT_MOUNT = {
    "name": "there are no buckets to name: bring data with `source: s3://BUCKET/PREFIX` and `mode: COPY`; what must "
    "survive goes to $CLOUDTRAIN_OUTPUT_DIR",
    "persistent": "take it out; nothing is deleted from your buckets",
}

_MEANT = {
    "cmd": "run",
    "command": "run",
    "disk": "disk_size",
    "entrypoint": "run",
    "env": "envs",
    "environment": "envs",
    "gpu": "accelerators",
    "gpus": "accelerators",
    "max_duration": "max_run",
    "max_price": "max_hourly_cost",
    "max_runtime": "max_run",
    "mounts": "file_mounts",
    "nodes": "num_nodes",
    "ram": "memory",
    "script": "run",
    "spot": "use_spot",
    "timeout": "max_run",
    "vcpus": "cpus",
    "working_dir": "workdir",
}


def refusal(section: Section, key: str) -> str:
    """One line on a key that ``section`` does not serve: later, misplaced, SkyPilot's, or the one that was meant."""
    name = key.lower().replace("-", "_")
    if key in section.later:
        return f"`{section.prefix}{key}` is not supported yet: take it out"
    if section in ALTERNATIVES and key in (*RESOURCES.served, *RESOURCES.aliases):
        where = section.path.partition(".")[2]
        return f"`{key}` holds for every alternative: write it once {RESOURCES.place}, beside `{where}`"
    theirs = {**SKYPILOT, **(_SKYPILOT_MOUNT if section is MOUNT else {})}
    if name not in section.served:
        if name in theirs:
            return f"`{key}` is SkyPilot's and not cloudtrain's: {theirs[name]}"
        for other in SECTIONS:
            if name in other.later:
                return f"`{other.prefix}{name}` is not supported yet: take it out"
            if name in (*other.served, *other.aliases) and other is not section:
                return f"`{key}` belongs {other.place}, not {section.place}"
    return f"unknown key `{key}` in {section.what}: {_meant(section, name)}"


def _meant(section: Section, name: str) -> str:
    if name == "gpus" and "cpus" in section.served:
        return "did you mean `accelerators` or `cpus`?"
    if name in _MEANT:
        owner = section if _MEANT[name] in section.served else next(s for s in SECTIONS if _MEANT[name] in s.served)
        return _did_you_mean(section, owner, _MEANT[name])
    for owner in (section, *SECTIONS):
        near = nearest(name, (*owner.served, *owner.later))
        if near:
            return _did_you_mean(section, owner, near)
    return f"known are {', '.join(section.served)}"


def _did_you_mean(section: Section, owner: Section, key: str) -> str:
    return f"did you mean `{key}`?" if owner is section else f"did you mean `{key}`, {owner.place}?"
