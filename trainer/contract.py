"""The words that the agent, the job's process and the controller share. Standard library only, Python 3.10.

Everything here is a plain value with a JSON form. Files on the machine live under one folder, ``$HOME/cloudtrain``:

    agent/        the shipped package (``agent/cloudtrain/trainer/...``), first on PYTHONPATH
    deps/         pure-Python wheels for the agent, where the image has none (else absent)
    incoming/     agent.json, secrets.json, snapshot.tar, snapshot.json as they arrived
    work/         the workdir snapshot, the job's current directory
    checkpoints/  CLOUDTRAIN_CHECKPOINT_DIR
    outputs/      CLOUDTRAIN_OUTPUT_DIR
    mounts/       data of ``file_mounts``, where the machine has no faster disk
    rootfs/       stands in for / under the absolute targets of ``file_mounts``, on a local host alone
    run/          status.json, progress.json, notice.json, stop.json, job.log, agent.log, agent.lock
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Value = TypeVar("_Value", bound="DataclassInstance")

ENV_JOB_ID = "CLOUDTRAIN_JOB_ID"
ENV_ATTEMPT = "CLOUDTRAIN_ATTEMPT"
ENV_CHECKPOINT_DIR = "CLOUDTRAIN_CHECKPOINT_DIR"
ENV_CHECKPOINT_INTERVAL = "CLOUDTRAIN_CHECKPOINT_INTERVAL"  # "600s" or "500steps"
ENV_CHECKPOINT_KEEP = "CLOUDTRAIN_CHECKPOINT_KEEP"
ENV_RESUME = "CLOUDTRAIN_RESUME"
ENV_OUTPUT_DIR = "CLOUDTRAIN_OUTPUT_DIR"
ENV_PROGRESS = "CLOUDTRAIN_PROGRESS"
ENV_NOTICE_FILE = "CLOUDTRAIN_NOTICE_FILE"
ENV_GRACE_SECONDS = "CLOUDTRAIN_GRACE_SECONDS"
ENV_NODE_RANK = "CLOUDTRAIN_NODE_RANK"
ENV_NODE_IPS = "CLOUDTRAIN_NODE_IPS"
ENV_NUM_NODES = "CLOUDTRAIN_NUM_NODES"
ENV_NUM_GPUS = "CLOUDTRAIN_NUM_GPUS_PER_NODE"
ENV_MOUNT_ROOT = "CLOUDTRAIN_MOUNT_ROOT"  # before an absolute target of file_mounts; "" but on a local host

# Of the machine's dead-man switch; below CLOUDTRAIN_ROOT on a local host.
SWITCH_DIR = "/var/lib/cloudtrain"
# Two lines, by the agent: a number that changes as the attempt gets on, and the path of ``progress.json``. The machine
# ends itself once neither that number nor that file has changed for 25 minutes. In memory, so that no disk is too full.
WORK_FILE = "/run/cloudtrain/work"

CHECKPOINT_PREFIX = "step-"
MANIFEST_NAME = "MANIFEST.json"
SECRETS_NAME = "secrets.json"  # in incoming/, 0600: the secrets' values by name, a JSON object


def checkpoint_name(step: int) -> str:
    """The directory name of a checkpoint: ``step-000000123``."""
    return f"{CHECKPOINT_PREFIX}{step:09d}"


def parse_checkpoint_name(name: str) -> int | None:
    """The step that a directory name stands for, or None: ``step-123`` and ``step-000000123`` are both step 123."""
    digits = name.removeprefix(CHECKPOINT_PREFIX)
    if name.startswith(CHECKPOINT_PREFIX) and digits.isascii() and digits.isdigit():
        return int(digits)
    return None


class Keys:
    """Where a job's objects lie in its bucket. ``prefix`` is ``jobs/<job id>``."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.latest = f"{prefix}/latest.json"

    def checkpoint(self, generation: int, step: int) -> str:
        """The immutable prefix of one checkpoint, without a closing slash."""
        return f"{self.prefix}/checkpoints/g{generation:04d}-{checkpoint_name(step)}"

    def outcome(self, generation: int) -> str:
        """The agent's last status of an attempt, written when outputs and logs are durable."""
        return f"{self.prefix}/attempts/{generation:04d}/status.json"

    def log(self, generation: int) -> str:
        """The whole log of an attempt, written at its end and about once a minute before."""
        return f"{self.prefix}/attempts/{generation:04d}/job.log"

    def beat(self, generation: int) -> str:
        """The agent's status of about a minute ago: for a controller that SSH does not lead to the machine."""
        return f"{self.prefix}/attempts/{generation:04d}/beat.json"

    def outputs(self) -> str:
        """The prefix of the job's outputs; ``<prefix>/outputs.json`` is their manifest, written last."""
        return f"{self.prefix}/outputs"


@dataclass(frozen=True)
class Latest:
    """``latest.json``: the newest durable checkpoint and the generation that may publish the next one.

    The controller raises ``generation`` (compare-and-set, checkpoint kept) before it launches that generation and
    before the resume point is read; an agent publishes only while ``generation`` equals its own. A publisher
    whose condition fails reads again: a higher generation means it is fenced and stops publishing for good.
    """

    generation: int
    step: int | None = None
    key: str | None = None  # the checkpoint's prefix in the bucket
    manifest_sha256: str | None = None  # of the bytes of <key>/MANIFEST.json


@dataclass(frozen=True)
class Progress:
    """``progress.json``, written by the job's process, replaced atomically, at most once a second."""

    step: int = 0
    total_steps: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    checkpoint_step: int | None = None  # newest whole checkpoint on the local disk
    done: bool = False
    stops_by_file: bool = False  # this process polls the notice file; no SIGTERM is needed before the deadline
    start_step: int = 0  # the step this process resumed from
    metrics: dict[str, float] = field(default_factory=dict)  # e.g. {"accuracy": 0.98}; final ones with done


@dataclass(frozen=True)
class Notice:
    """``notice.json``: stop request. The job saves and leaves before ``deadline_at`` (Unix seconds)."""

    reason: str  # "interruption" | "stop"
    deadline_at: float


@dataclass(frozen=True)
class Utilisation:
    """One sample. Percentages 0 to 100 of the whole machine; GPU values are None where there is no GPU."""

    cpu_percent: float | None = None
    memory_percent: float | None = None
    gpu_percent: float | None = None
    gpu_memory_percent: float | None = None
    gpu_count: int = 0


# The agent's phases: checking, mounting, setup, restoring, running, saving, then one of these, which is only reported
# once outputs, logs and the last checkpoint are durable in the bucket.
FINAL_PHASES = ("done", "failed", "stopped")


# Folders that are shared by much else, and those of the system or where images keep Python: nothing may be put at one,
# nor, for the second group, below it.
_NOT_AT = ("/", "/home", "/media", "/mnt", "/opt", "/srv", "/tmp", "/var")  # noqa: S108 - refused, never written
_NOT_BELOW = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/opt/conda", "/opt/pytorch", "/proc", "/root"),
    *("/run", "/sbin", "/snap", "/sys", "/usr", "/var/cache", "/var/lib", "/var/log", "/var/run"),
)


def mount_target_trouble(target: str) -> str | None:
    """Why no data can be put at this target of ``file_mounts``; None where it can. Absolute, "~/…", or below work/."""
    if not target or "\0" in target:
        return "it is empty"
    at_home = target.startswith("~/")
    path = target[2:] if at_home else target
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or path.startswith("~"):
        return "it must be absolute, below ~/, or relative to the job's folder, without `..`"
    if target.startswith("/"):
        plain = "/" + "/".join(parts)
        if plain in _NOT_AT or any(f"{plain}/".startswith(f"{place}/") for place in _NOT_BELOW):
            return "it is the system's own"
        if parts[0] != "home":
            return None
        at_home, parts = True, parts[2:]
    if not parts:
        return "it is the home folder itself" if at_home else "it is the job's folder itself"
    if at_home and parts[0] in (".ssh", "cloudtrain"):
        return "it is the agent's own, or the way into the machine"
    return None


@dataclass(frozen=True)
class Mount:
    """Data that lies at ``target`` before ``setup`` and ``run`` start. Its manifest is an object of the job's bucket:

        {"v": 1, "source": "/home/me/data", "single": false, "files": [{"path": "a", "mode": 420, "size": 9,
         "sha256": "…"}, {"path": "b", "link": "a"}, {"path": "c", "dir": true, "mode": 493}]}

    or, for data that stays in the user's own bucket, where a file is the object ``prefix`` + ``path``:

        {"v": 1, "source": "s3://b/p", "single": false, "bucket": "b", "region": "us-east-1", "prefix": "p/",
         "files": [{"path": "a", "mode": 420, "size": 9, "etag": "\\"…\\""}]}

    The content of a file with a SHA-256 is the object ``content_key``. ``single``: the target is that one file.
    """

    target: str
    key: str  # of the manifest
    sha256: str  # of the manifest's bytes
    bytes: int
    files: int
    region: str | None = None  # of the bucket that its files lie in; None: the job's own


def content_key(sha256: str) -> str:
    """The object, in the job's bucket, with a file's content. Shared by all jobs, and never changed."""
    return f"files/{sha256}"


@dataclass(frozen=True)
class AgentStatus:
    """``run/status.json``: what the agent knows, replaced atomically at least every 5 seconds while it lives."""

    generation: int
    phase: str
    heartbeat_at: float  # Unix seconds on the machine's clock
    progress: Progress = field(default_factory=Progress)
    utilisation: Utilisation = field(default_factory=Utilisation)
    durable_step: int | None = None  # newest checkpoint whole in the bucket and published
    resumed_step: int | None = None  # the checkpoint this attempt resumed from; None: from the beginning
    notice_deadline_at: float | None = None  # set once an interruption notice was seen
    run_seconds: float = 0.0  # how long the user's `run` has been running (the whole of it, at the end)
    exit_code: int | None = None  # of the user's `run`
    error: str | None = None  # one line: what happened and what to do
    # Of "failed", whose fault: "job" (run, setup) | "machine" (check, disk) | "max_run" | "budget" |
    # "image" (what every machine of that image lacks) | "denied" (the bucket, for every machine).
    failure: str | None = None
    checks: tuple[str, ...] = ()  # one line for each machine check: "gpu: skipped, a local host stands in for T4:1"
    rejected: tuple[str, ...] = ()  # checkpoints not used, each with its reason
    fenced: bool = False  # a newer generation exists: this attempt publishes nothing any more
    mounted_bytes: int = 0  # of file_mounts, how much lies on this machine, verified or about to be
    mount_bytes: int = 0  # of file_mounts, all of it
    restore_s: float | None = None  # from the agent's start until data and checkpoint were there; None: not yet
    received_bytes: int = 0  # from the bucket, file_mounts apart: the checkpoint
    sent_bytes: int = 0  # to the bucket: checkpoints, outputs, logs


@dataclass(frozen=True)
class AgentConfig:
    """``incoming/agent.json``: everything the agent is told. Holds no secret."""

    job_id: str
    generation: int
    bucket: str
    region: str
    prefix: str  # Keys(prefix)
    run: str  # a shell script, run by bash (sh where there is none) in work/
    setup: str | None = None
    envs: dict[str, str] = field(default_factory=dict)
    checkpoint_interval: str = "600s"  # ENV_CHECKPOINT_INTERVAL
    checkpoint_keep: int = 3
    host: str = "systemd"  # "systemd": a real machine | "local": a host of the embedded cloud
    login_user: str | None = None  # the user that `run` runs as; None: the agent's own
    expect_accelerator: str = ""  # "T4:1"; what the machine check looks for
    expect_gpus: int = 0
    grace_seconds: float = 30.0  # from a stop request to the kill, when no notice gives a deadline
    limit_s: float | None = None  # from the agent's start; past it: save, deliver, power off
    limit_s_per_gb: float = 0.0  # what each GB (10^9 bytes) sent to the bucket takes off it: the traffic has its price
    limit: str = "max_run"  # which limit of the job's that is: "max_run" | "budget"
    limit_words: str = ""  # "the budget of $250": for the person
    sent_at: float = 0.0  # when this was sent, by the launching computer's clock; 0: not said
    venv: str | None = None  # the image's virtual environment; activated for setup and run where it is there
    scratch: str | None = None  # where the machine's fastest disk is mounted; None: the type has none
    mounts: tuple[Mount, ...] = ()


def to_json(value: Any) -> str:
    """The JSON text of one of this module's dataclasses."""
    return json.dumps(asdict(value), ensure_ascii=False)


def _build(cls: type[_Value], raw: Any) -> _Value:
    if not isinstance(raw, dict):
        raise TypeError(f"{cls.__name__} is a JSON object, not {type(raw).__name__}")
    known = {f.name for f in fields(cls)}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in known})


def latest_from_json(text: str | bytes) -> Latest:
    """A Latest. Raises ValueError or TypeError for other text."""
    return _build(Latest, json.loads(text))


def progress_from_json(text: str | bytes) -> Progress:
    """A Progress; keys that this version does not know are dropped. Raises ValueError or TypeError for other text.

    Any script may write the file, so every value's type is checked: a wrong one must not travel further.
    """
    progress = _build(Progress, json.loads(text))
    numbers: dict[str, type] = {"step": int, "start_step": int, "total_steps": int, "checkpoint_step": int}
    numbers |= {"loss": float, "samples_per_s": float}
    for name, kind in numbers.items():
        _check_number(name, getattr(progress, name), kind, optional=name not in ("step", "start_step"))
    if not isinstance(progress.metrics, dict):
        raise TypeError("metrics is an object of numbers")
    for name, value in progress.metrics.items():
        _check_number(name, value, float, optional=True)
    if not isinstance(progress.done, bool) or not isinstance(progress.stops_by_file, bool):
        raise TypeError("done and stops_by_file are true or false")
    return progress


def _check_number(name: str, value: object, kind: type, *, optional: bool) -> None:
    allowed = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not (isinstance(value, allowed) or (optional and value is None)):
        raise TypeError(f"{name} is a number, not {value!r}")


def config_from_json(text: str | bytes) -> AgentConfig:
    """An AgentConfig. Raises ValueError or TypeError for other text."""
    raw = json.loads(text)
    if isinstance(raw, dict):
        raw["mounts"] = [_build(Mount, mount) for mount in raw.get("mounts") or ()]
    return _build(AgentConfig, raw)


def status_from_json(text: str | bytes) -> AgentStatus:
    """An AgentStatus. Raises ValueError or TypeError for other text."""
    raw = json.loads(text)
    if not isinstance(raw, dict):
        raise TypeError("AgentStatus is a JSON object")
    raw["progress"] = _build(Progress, raw.get("progress") or {})
    raw["utilisation"] = _build(Utilisation, raw.get("utilisation") or {})
    return _build(AgentStatus, raw)


def write_atomic(path: Path, text: str) -> None:
    """Replace ``path`` whole or not at all. A reader never sees half a file. Not fsynced: for status, not for data."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
