"""The job file: YAML in, a checked ``JobSpec`` out, or one line ``file:line:column: message``.

SkyPilot's key names where the meaning is the same. Nothing is ignored: a key is served, or it is refused as
"not supported yet", or with what to write instead, or it is unknown (``job_keys``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode

from cloudtrain.provisioner.errors import NotFound, UsageError
from cloudtrain.provisioner.jobfile import keys as job_keys
from cloudtrain.provisioner.jobfile import resources as job_resources
from cloudtrain.provisioner.jobfile.data import Envs, check_script, read_envs, read_file_mounts, read_secrets
from cloudtrain.provisioner.jobfile.values import DURATION_FORM, NAME_FORM, USD_FORM, duration_s, is_name, usd
from cloudtrain.provisioner.jobfile.yamlnodes import MAX_BYTES, Source
from cloudtrain.provisioner.spec import FileMount, Interval, JobSpec, Recovery

_STEPS = re.compile(r"([1-9][0-9]{0,11}) steps?")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def load(path: Path) -> JobSpec:
    """The job that a file describes; ``workdir`` and local sources of ``file_mounts`` are absolute and exist.

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
        what = "UTF-16" if data.startswith(_UTF16) else "not UTF-8"
        raise UsageError(f"{path}:{line}:{column}: {what} text: save the file as UTF-8") from error
    job = _Job(Source(str(path)))
    spec = job.read(text, path)
    if spec.workdir is not None and job.workdir is not None:
        workdir, problem = _beside(path, spec.workdir)
        if problem is None and not workdir.is_dir():
            problem = "is not a folder"
        if problem:
            raise job.source.error(job.workdir, f"workdir {workdir} {problem}: create it, or take `workdir` out")
        spec = replace(spec, workdir=str(workdir))
    return replace(spec, file_mounts=tuple(_located(path, job, mount, node) for mount, node in job.mounts))


def _located(path: Path, job: _Job, mount: FileMount, node: Node) -> FileMount:
    """The mount with an absolute source."""
    if "://" in mount.source:
        return mount
    found, problem = _beside(path, mount.source)
    if problem is None and not (found.is_file() or found.is_dir()):
        problem = "is neither a file nor a folder"
    if problem:
        raise job.source.error(node, f"the source {found} {problem}: create it, or take {mount.target} out")
    return replace(mount, source=str(found))


def _beside(path: Path, text: str) -> tuple[Path, str | None]:
    """What a path in the file at ``path`` leads to, and what is wrong with it."""
    try:
        found = (path.parent / Path(text).expanduser()).resolve()
        return found, None if found.exists() else "does not exist"
    except (OSError, RuntimeError, ValueError) as error:  # too long a name, a loop, an unknown user's home
        return Path(text), f"can't be used ({error})"


def loads(text: str, *, path: Path) -> JobSpec:
    """The job that a text describes; touches no file. ``path`` is the name in messages and gives the default name.

    ``workdir`` and local sources are as they are written: ``load`` makes them absolute. Raises UsageError.
    """
    return _Job(Source(str(path))).read(text, path)


@dataclass
class _Job:
    """Reads one file. ``workdir`` and ``mounts`` keep the places for the checks that need the file system."""

    source: Source
    workdir: Node | None = None
    mounts: list[tuple[FileMount, Node]] = field(default_factory=list)

    def read(self, text: str, path: Path) -> JobSpec:
        source = self.source
        root = source.compose(text)
        nodes = dict(self._entries(root, job_keys.JOB))
        found: dict[str, Any] = {} if "name" in nodes else {"name": self._default_name(root, path)}
        for key, node in nodes.items():
            match key:
                case "name":
                    found["name"] = self._name(node)
                case "resources":
                    found |= job_resources.read(source, node)
                case "num_nodes":
                    self._num_nodes(node)
                case "workdir":
                    self.workdir, found["workdir"] = node, self._workdir(node)
                case "checkpoint":
                    found |= self._checkpoint(node)
                case "setup" | "run":
                    found[key] = check_script(source, node, key)
        found |= self._limits(nodes)
        found |= self._data(nodes)
        if "run" not in found:
            raise source.error(root, "`run` is missing: write the command that trains, such as `run: python train.py`")
        if "resources" not in found:
            raise source.error(root, "no GPU asked for: set resources.accelerators, such as `accelerators: T4:1`")
        return JobSpec(**found)

    def _entries(self, node: Node, section: job_keys.Section) -> Iterator[tuple[str, Node]]:
        return self.source.known_entries(node, section.what, section.served, lambda key: job_keys.refusal(section, key))

    def _limits(self, nodes: dict[str, Node]) -> dict[str, Any]:
        """Of time, money and tries."""
        times = ("deadline", "max_run", "max_wait")
        found: dict[str, Any] = {f"{key}_s": self._duration(nodes[key], key) for key in times if key in nodes}
        if "budget" in nodes:
            found["budget_usd"] = self._usd(nodes["budget"], "budget")
        if "recovery" in nodes:
            found["recovery"] = self._recovery(nodes["recovery"])
        return found

    def _data(self, nodes: dict[str, Node]) -> dict[str, Any]:
        """``envs``, and what may name them."""
        envs = read_envs(self.source, nodes["envs"]) if "envs" in nodes else Envs((), ())
        secrets = read_secrets(self.source, nodes["secrets"], envs) if "secrets" in nodes else envs.names
        if "file_mounts" in nodes:
            self.mounts = read_file_mounts(self.source, nodes["file_mounts"], envs)
        return {"envs": envs.values, "secrets": secrets, "file_mounts": tuple(mount for mount, _ in self.mounts)}

    def _name(self, node: Node) -> str:
        written = self.source.text(node, "name")
        name = re.sub("[_.]", "-", written.lower())  # SkyPilot's names have more signs
        if not is_name(name):
            usable = _usable_name(written)
            hint = f"; write `name: {usable}`" if usable else ""
            raise self.source.error(node, f"name {written!r}: {NAME_FORM}{hint}")
        return name

    def _default_name(self, root: Node, path: Path) -> str:
        name = _usable_name(path.stem)
        if not name:
            raise self.source.error(root, "`name` is missing, and the file's name gives none: write `name: my-job`")
        return name

    def _workdir(self, node: Node) -> str:
        if isinstance(node, MappingNode):
            raise self.source.error(node, "workdir must be text, not a mapping: clone a repository in `setup`")
        return self.source.text(node, "workdir")

    def _num_nodes(self, node: Node) -> None:
        if self.source.integer(node, "num_nodes", minimum=1) != 1:
            raise self.source.error(node, "more than one node is not supported yet: write `num_nodes: 1`")

    def _checkpoint(self, node: Node) -> dict[str, Any]:
        found = dict[str, Any]()
        for key, value in self._entries(node, job_keys.CHECKPOINT):
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

    def _recovery(self, node: Node) -> Recovery:
        found = dict[str, int | None]()
        for key, value in self._entries(node, job_keys.RECOVERY):
            unlimited = key == "max_preemptions" and isinstance(value, ScalarNode) and value.value == "unlimited"
            found[key] = None if unlimited else self.source.integer(value, f"recovery.{key}", minimum=0)
        return Recovery(**found)  # type: ignore[arg-type]

    def _usd(self, node: Node, what: str) -> Decimal:
        text = self.source.text_or_number(node, what)
        amount = usd(text)
        if amount is None:
            raise self.source.error(node, f"{what} {text!r}: {USD_FORM}")
        return amount

    def _duration(self, node: Node, what: str) -> float:
        text = self.source.text(node, what)
        seconds = duration_s(text)
        if seconds is None:
            raise self.source.error(node, f"{what} {text!r} is not a duration: {DURATION_FORM}")
        return seconds


def _usable_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:41]
