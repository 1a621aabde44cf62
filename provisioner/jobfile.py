"""The job file: YAML in, a checked ``JobSpec`` out, or one line ``file:line:column: message``.

SkyPilot's key names where the meaning is the same. Nothing is ignored: a key is served, or it is refused as
"not supported yet", or it is unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from cloudtrain.pricing.accelerators import AcceleratorError, canonical, combine, parse
from cloudtrain.pricing.requirements import Amount
from cloudtrain.provisioner.errors import NotFound, UsageError
from cloudtrain.provisioner.model import Interval, JobSpec, Resources
from cloudtrain.provisioner.values import DURATION_FORM, NAME_FORM, duration_s, env_problem, is_name, is_region
from cloudtrain.provisioner.yamlnodes import MAX_BYTES, Source

JOB_KEYS = ("name", "resources", "num_nodes", "workdir", "envs", "setup", "run", "checkpoint", "max_run")
JOB_KEYS_LATER = (
    "file_mounts",
    "secrets",
    "trainer",
    "deadline",
    "budget",
    "max_wait",
    "recovery",
    "on_idle",
    "on_hang",
    "on_hot",
    "on_finish",
    "notify",
)
RESOURCE_KEYS = (
    "accelerators",
    "use_spot",
    "infra",
    "cpus",
    "memory",
    "disk_size",
    "max_hourly_cost",
    "instance_type",
)
RESOURCE_KEYS_LATER = ("network_tier", "any_of", "ordered", "aws")
CHECKPOINT_KEYS = ("interval", "keep")
CHECKPOINT_KEYS_LATER = ("watch", "complete_when", "settle_seconds", "resume_args")

_STEPS = re.compile(r"([1-9][0-9]{0,11}) steps?")


def load(path: Path) -> JobSpec:
    """The job that a file describes; its ``workdir`` is absolute and exists.

    Raises NotFound where there is no such file, UsageError for whatever else is wrong.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"{path}: there is no such job file: check the path") from error
    except OSError as error:
        raise UsageError(f"{path}: the job file can't be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}:1:1: longer than {MAX_BYTES // 1024} KiB: this is not a job file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        raise UsageError(f"{path}:{line}:{column}: not UTF-8 text: save the file as UTF-8") from error
    job = _Job(Source(str(path)))
    spec = job.read(text, path)
    if spec.workdir is None or job.workdir is None:
        return spec
    try:
        workdir = (path.parent / Path(spec.workdir).expanduser()).resolve()
        problem = None if workdir.is_dir() else "is not a folder" if workdir.exists() else "does not exist"
    except (OSError, RuntimeError) as error:  # too long a name, a loop of links, the home of an unknown user
        workdir, problem = Path(spec.workdir), f"can't be used ({error})"
    if problem:
        raise job.source.error(job.workdir, f"workdir {workdir} {problem}: create it, or take `workdir` out")
    return replace(spec, workdir=str(workdir))


def loads(text: str, *, path: Path) -> JobSpec:
    """The job that a text describes; touches no file. ``path`` is the name in messages and gives the default name.

    ``workdir`` is as it is written: ``load`` makes it absolute. Raises UsageError.
    """
    return _Job(Source(str(path))).read(text, path)


@dataclass
class _Job:
    """Reads one file. ``workdir`` keeps that key's place for the check that needs the file system."""

    source: Source
    workdir: Node | None = None

    def read(self, text: str, path: Path) -> JobSpec:
        source = self.source
        found: dict[str, Any] = {}
        resources: Node | None = None
        root = source.compose(text)
        for key, node in source.known_entries(root, "a job file", JOB_KEYS, JOB_KEYS_LATER, ""):
            match key:
                case "name":
                    found["name"] = self._name(node)
                case "resources":
                    resources = node
                    found |= self._resources(node)
                case "num_nodes":
                    self._num_nodes(node)
                case "workdir":
                    self.workdir, found["workdir"] = node, source.text(node, "workdir")
                case "envs":
                    found["envs"] = self._envs(node)
                case "checkpoint":
                    found |= self._checkpoint(node)
                case "max_run":
                    found["max_run_s"] = self._duration(node, "max_run")
                case _:
                    found[key] = source.text(node, key)
        if "run" not in found:
            raise source.error(root, "`run` is missing: write the command that trains, such as `run: python train.py`")
        if "accelerators" not in found and "instance_type" not in found:
            raise source.error(
                resources or root, "no GPU asked for: set resources.accelerators, such as `accelerators: T4:1`"
            )
        picks = {f.name for f in fields(Resources)}
        found["resources"] = (Resources(**{k: found.pop(k) for k in picks & found.keys()}),)
        return JobSpec(**{"name": self._default_name(root, path), **found} if "name" not in found else found)

    def _name(self, node: Node) -> str:
        name = self.source.text(node, "name")
        if not is_name(name):
            raise self.source.error(node, f"name {name!r}: {NAME_FORM}")
        return name

    def _default_name(self, root: Node, path: Path) -> str:
        name = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:41]
        if not name:
            raise self.source.error(root, "`name` is missing, and the file's name gives none: write `name: my-job`")
        return name

    def _num_nodes(self, node: Node) -> None:
        if self.source.integer(node, "num_nodes", minimum=1) != 1:
            raise self.source.error(node, "more than one node is not supported yet: write `num_nodes: 1`")

    def _resources(self, node: Node) -> dict[str, Any]:
        source, found = self.source, dict[str, Any]()
        entries = source.known_entries(node, "resources", RESOURCE_KEYS, RESOURCE_KEYS_LATER, "resources.")
        for key, value in entries:
            match key:
                case "accelerators":
                    found[key] = self._accelerators(value)
                case "use_spot":
                    if isinstance(value, ScalarNode) and value.value == "auto":
                        raise source.error(value, "`use_spot: auto` is not supported yet: write true or false")
                    found[key] = source.boolean(value, key)
                case "infra":
                    found[key] = self._infra(value)
                case "cpus" | "memory":
                    found[key] = self._amount(value, key)
                case "disk_size":
                    found["disk_size_gib"] = source.integer(value, f"{key} (GiB)", minimum=1)
                case "max_hourly_cost":
                    found["max_hourly_cost_usd"] = source.positive_decimal(value, key, "USD per hour")
                case _:
                    found[key] = source.text(value, key)
        return found

    def _accelerators(self, node: Node) -> str:
        """The canonical text of a scalar, a mapping (any of) or a list (in order)."""
        source, what = self.source, "accelerators"
        try:
            if isinstance(node, MappingNode):
                return canonical(combine([self._any_of(k, v) for k, v in source.entries(node, what)], ordered=False))
            if isinstance(node, SequenceNode):
                return canonical(combine([source.text(item, what) for item in node.value], ordered=True))
            return canonical(parse(source.text(node, what)))
        except AcceleratorError as error:
            raise source.error(node, str(error)) from error

    def _any_of(self, key: ScalarNode, value: Node) -> str:
        if isinstance(value, ScalarNode) and value.value == "" and value.style is None:
            return str(key.value)  # {A100:8} without a blank: YAML reads a key with no value
        return f"{key.value}:{self.source.integer(value, f'the count of {key.value}', minimum=1)}"

    def _infra(self, node: Node) -> tuple[str, ...]:
        places = []
        for item in self.source.items(node):
            place = self.source.text(item, "infra")
            cloud, slash, region = place.partition("/")
            if cloud == "local":
                raise self.source.error(item, "infra names a cloud's places: for this machine use `--cloud local`")
            if cloud != "aws":
                raise self.source.error(item, f"infra {place!r} is not supported yet: write aws or aws/REGION")
            if slash and not is_region(region):
                raise self.source.error(item, f"infra {place!r}: write aws or aws/REGION, such as aws/us-east-1")
            places.append(place)
        if not places:
            raise self.source.error(node, "infra is empty: write aws or aws/REGION, or take it out")
        return tuple(places)

    def _amount(self, node: Node, key: str) -> str:
        text = self.source.text_or_number(node, key)
        try:
            return str(Amount.parse(text))
        except ValueError as error:
            raise self.source.error(node, f"{key}: {error}") from error

    def _envs(self, node: Node) -> tuple[tuple[str, str], ...]:
        """Names and values in the file's order. A plain number is taken as it is written: ``10`` is "10"."""
        envs = []
        for key, value in self.source.entries(node, "envs"):
            name = key.value
            if problem := env_problem(name):
                raise self.source.error(key, problem)
            envs.append((name, self.source.text_or_number(value, f"envs.{name}")))
        return tuple(envs)

    def _checkpoint(self, node: Node) -> dict[str, Any]:
        found = dict[str, Any]()
        entries = self.source.known_entries(node, "checkpoint", CHECKPOINT_KEYS, CHECKPOINT_KEYS_LATER, "checkpoint.")
        for key, value in entries:
            if key == "keep":
                found["checkpoint_keep"] = self.source.integer(value, "checkpoint.keep", minimum=1)
            else:
                found["checkpoint_interval"] = self._interval(value)
        return found

    def _interval(self, node: Node) -> Interval:
        text = self.source.text(node, "checkpoint.interval")
        if text == "auto":
            raise self.source.error(node, "`interval: auto` is not supported yet: write 10m or 500 steps")
        steps, seconds = _STEPS.fullmatch(text), duration_s(text)
        if steps:
            return Interval(steps=int(steps[1]))
        if seconds is not None:
            return Interval(seconds=seconds)
        raise self.source.error(node, f"checkpoint.interval {text!r}: write 90s, 10m, 2h or 500 steps")

    def _duration(self, node: Node, what: str) -> float:
        text = self.source.text(node, what)
        seconds = duration_s(text)
        if seconds is None:
            raise self.source.error(node, f"{what} {text!r} is not a duration: {DURATION_FORM}")
        return seconds
