"""What comes along with a job: variables, secrets' names, and the data of ``file_mounts``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from yaml.nodes import MappingNode, Node, SequenceNode

from cloudtrain.provisioner.jobfile import keys as job_keys
from cloudtrain.provisioner.jobfile.values import env_problem
from cloudtrain.provisioner.jobfile.yamlnodes import Source
from cloudtrain.provisioner.spec import FileMount
from cloudtrain.trainer.contract import mount_target_trouble

# What the agent sets under SkyPilot's names too (trainer/agent/jobenv.py), so that its scripts run as they are.
SKYPILOT_VARIABLES = (
    "SKYPILOT_NODE_IPS",
    "SKYPILOT_NODE_RANK",
    "SKYPILOT_NUM_GPUS_PER_NODE",
    "SKYPILOT_NUM_NODES",
    "SKYPILOT_TASK_ID",
)

MOST_BYTES = 128 * 1024  # of "NAME=VALUE" and its NUL (execve(2), MAX_ARG_STRLEN; read 2026-11)

# S3 User Guide, "General purpose bucket naming rules", read 2026-11.
_BUCKET = re.compile(r"(?!xn--|sthree-|amzn-s3-demo-)(?!.*\.\.)(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_USES = re.compile(r"\$\{?(SKYPILOT_[A-Z0-9_]+)")


@dataclass(frozen=True, slots=True)
class Envs:
    """``envs``: values, and the names whose value comes from the launching shell."""

    values: tuple[tuple[str, str], ...]
    names: tuple[str, ...]


def read_envs(source: Source, node: Node) -> Envs:
    """Names and values in the file's order. A plain number is taken as it is written: ``10`` is "10".

    A name without a value (SkyPilot's way to ask for it at launch) is kept apart. Raises UsageError.
    """
    values, names = [], []
    for key, value in source.entries(node, "envs"):
        _check_name(source, key)
        if source.is_null(value):
            names.append(str(key.value))
        else:
            text = source.text_or_number(value, f"envs.{key.value}")
            if len(f"{key.value}={text}".encode()) >= MOST_BYTES:
                raise source.error(
                    value,
                    f"envs.{key.value} has more than 128 KiB, which Linux refuses: put it into a file of the workdir",
                )
            values.append((str(key.value), text))
    return Envs(tuple(values), tuple(names))


def read_secrets(source: Source, node: Node, envs: Envs) -> tuple[str, ...]:
    """The names of a list, or of SkyPilot's mapping of names to nothing. Raises UsageError."""
    taken = {name for name, _ in envs.values}
    found: dict[str, int] = {}
    for key in _secret_names(source, node):
        name = source.text(key, "secrets")
        _check_name(source, key)
        if name in taken:
            raise source.error(key, f"{name} is in envs too: keep it under secrets alone")
        if name in found:
            raise source.error(key, f"{name} is already named in line {found[name]}: keep one")
        found[name] = key.start_mark.line + 1
    return tuple(dict.fromkeys((*found, *envs.names)))


def _secret_names(source: Source, node: Node) -> list[Node]:
    if not isinstance(node, MappingNode):
        return source.sequence(node, "secrets") if isinstance(node, SequenceNode) else [node]
    names: list[Node] = []
    for key, value in source.entries(node, "secrets"):
        if not source.is_null(value):
            raise source.error(
                value,
                f"secrets.{key.value}: a secret's value doesn't belong in a file: write the name alone "
                f"(`secrets: [{key.value}]`) and set the variable where you launch",
            )
        names.append(key)
    return names


def _check_name(source: Source, key: Node) -> None:
    if problem := env_problem(str(key.value)):
        raise source.error(key, problem)


def check_script(source: Source, node: Node, what: str) -> str:
    """The text of ``setup`` or ``run``. Raises UsageError, also for a variable of SkyPilot's that nobody sets."""
    if isinstance(node, SequenceNode):
        raise source.error(node, f"{what} must be text, not a list: write the lines below `{what}: |`")
    text = source.text(node, what)
    unset = next((use[1] for use in _USES.finditer(text) if use[1] not in SKYPILOT_VARIABLES), None)
    if unset:
        raise source.error(
            node, f"{what} uses {unset}, which is not set: of SkyPilot's {', '.join(SKYPILOT_VARIABLES)}"
        )
    return text


def read_file_mounts(source: Source, node: Node, envs: Envs) -> list[tuple[FileMount, Node]]:
    """The mounts, each with the place of its source; local sources as they are written. Raises UsageError."""
    variables = dict(envs.values)
    found: list[tuple[FileMount, Node]] = []
    lines: dict[str, int] = {}
    for key, value in source.entries(node, "file_mounts"):
        target = _target(source, key, _filled(source, key, str(key.value), variables))
        for other, line in lines.items():
            if f"{target}/".startswith(f"{other}/") or f"{other}/".startswith(f"{target}/"):
                same = "the same as" if target == other else "inside" if len(target) > len(other) else "around"
                raise source.error(key, f"{key.value} is {same} {other} of line {line}: give each its own folder")
        lines[target] = key.start_mark.line + 1
        item = _long_form(source, value) if isinstance(value, MappingNode) else value
        what = f"file_mounts of {key.value}"
        text = _filled(source, item, source.text(item, what), variables)
        found.append((FileMount(target, _source(source, item, text)), item))
    return found


def _filled(source: Source, node: Node, text: str, variables: Mapping[str, str]) -> str:
    """The text with the values of ``envs`` in the place of ``$NAME`` and ``${NAME}``."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in variables:
            raise source.error(node, f"{match[0]} has no value under envs: write it there, or here")
        return variables[name]

    return _VARIABLE.sub(value, text)


def _long_form(source: Source, node: MappingNode) -> Node:
    """The source of SkyPilot's ``{source: ..., mode: COPY}``."""
    section = job_keys.MOUNT
    served = (*section.served, *section.aliases)
    nodes = dict(source.known_entries(node, section.what, served, lambda key: job_keys.refusal(section, key)))
    instead = "data is copied, buckets are not mounted: write `mode: COPY`; what must survive goes to "
    instead += "$CLOUDTRAIN_OUTPUT_DIR"
    if "mode" not in nodes:
        raise source.error(node, f"no `mode` means MOUNT in SkyPilot: {instead}")
    mode = source.text(nodes["mode"], "mode")
    if mode.upper() != "COPY":
        raise source.error(nodes["mode"], f"mode {mode!r} is not supported: {instead}")
    if "source" not in nodes:
        raise source.error(node, "`source` is missing: write s3://BUCKET/PREFIX or a local path")
    if "store" in nodes and source.text(nodes["store"], "store").lower() != "s3":
        raise source.error(nodes["store"], f"store {nodes['store'].value!r} is not supported: write s3, or take it out")
    return nodes["source"]


def _source(source: Source, node: Node, text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise source.error(node, f"{text!r} holds a control character: take it out")
    if not separator:
        return text
    if scheme != "s3":
        raise source.error(node, f"{text!r}: {scheme}:// is not supported: write s3://BUCKET/PREFIX or a local path")
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise source.error(
            node, f"{text!r}: {bucket!r} can't be a bucket's name: write s3://BUCKET or s3://BUCKET/PREFIX"
        )
    if any(part in ("", ".", "..") for part in prefix.removesuffix("/").split("/")) and prefix:
        raise source.error(node, f"{text!r}: the prefix has an empty part, `.` or `..`: write s3://BUCKET/PREFIX")
    return f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"


def _target(source: Source, node: Node, text: str) -> str:
    """The target without needless signs: "/data", "~/data" (the login user's home) or "data" (the workdir)."""
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise source.error(node, f"the target {text!r} holds a control character: take it out")
    start = "/" if text.startswith("/") else "~/" if f"{text}/".startswith("~/") else ""
    parts = text[1:].split("/") if start else text.split("/")
    target = start + "/".join(part for part in parts if part not in ("", "."))
    problem = mount_target_trouble(target or text)
    if problem:
        raise source.error(node, f"no data can be put at {text!r}: {problem}; write a target such as /data")
    return target
