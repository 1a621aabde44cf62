"""Configuration: what a flag is when nobody types it.

A flag > the variable ``CLOUDTRAIN_<KEY>`` > the project's ``cloudtrain.yaml`` (the nearest, from the current folder
upwards) > the user's ``config.yaml``. The merge is pure; ``Sources.found`` is the small reader around it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.home import expanded
from cloudtrain.provisioner.jobfile.values import is_region, nearest

PROJECT_FILE = "cloudtrain.yaml"
VARIABLE = "CLOUDTRAIN_{}"

# 3 to 63 letters, digits, dots and hyphens ("General purpose bucket naming rules", S3 user guide, seen 2026-11).
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: the flag that it stands for, what may be written, and whether a text is that."""

    flag: str
    what: str
    form: str
    fits: Callable[[str], bool]


KEYS: dict[str, Key] = {
    "cloud": Key("--cloud", "where jobs run", "aws or local", lambda text: text in ("aws", "local")),
    "region": Key("--region", "where, if the job file does not say", "an AWS region, such as us-east-1", is_region),
    "bucket": Key("--bucket", "the bucket", "a bucket's name, without s3://", lambda t: bool(_BUCKET.fullmatch(t))),
    "output": Key("--output", "how results are printed", "table or json", lambda text: text in ("table", "json")),
}
DEFAULTS = {"cloud": "aws", "output": "table"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that is set, and where: a variable's name, or FILE:LINE."""

    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class Sources:
    """Where settings come from. ``project`` is None where no folder upwards has one; ``user`` may not exist."""

    env: Mapping[str, str]
    project: Path | None
    user: Path

    @classmethod
    def here(cls) -> Sources:
        """Those of this process: its environment and current folder."""
        base = expanded(os.environ.get("XDG_CONFIG_HOME") or "~/.config", "XDG_CONFIG_HOME")
        return cls(dict(os.environ), _project_file(), base / "cloudtrain" / "config.yaml")

    def found(self) -> dict[str, Setting]:
        """Each setting that somebody made. Raises UsageError for whatever is wrong in a file or a variable."""
        user = read(self.user) if self.user.is_file() else {}
        project = read(self.project) if self.project is not None else {}
        return merge(from_env(self.env), project, user)


def merge(*layers: Mapping[str, Setting]) -> dict[str, Setting]:
    """Each key from the first layer that has it, in the order of KEYS."""
    return {key: next(layer[key] for layer in layers if key in layer) for key in KEYS if any(key in x for x in layers)}


def from_env(env: Mapping[str, str]) -> dict[str, Setting]:
    """The settings of an environment; an empty variable sets nothing. Raises UsageError for a wrong value."""
    found = {}
    for key in KEYS:
        name = VARIABLE.format(key.upper())
        if value := env.get(name):
            if problem := refusal(key, value):
                raise UsageError(f"{name}: {problem}")
            found[key] = Setting(value, name)
    return found


def refusal(key: str, value: str) -> str | None:
    """Why the value can't be the key's; None where it can."""
    if KEYS[key].fits(value):
        return None
    near = nearest(value, KEYS[key].form.replace(" or ", " ").split()) if key in DEFAULTS else None
    return f"{key} {value!r}: " + (f"did you mean {near}?" if near else f"write {KEYS[key].form}")


def unknown(key: str) -> str:
    """What to say of a key that does not exist."""
    near = nearest(key.lower(), KEYS)
    return f"unknown key `{key}`: " + (f"did you mean `{near}`?" if near else f"known are {', '.join(KEYS)}")


def read(path: Path) -> dict[str, Setting]:
    """The settings of a file. Raises UsageError (file:line:column) for an unknown key or a wrong value."""
    from yaml.nodes import MappingNode  # noqa: PLC0415 - only where there is such a file

    from cloudtrain.provisioner.jobfile.yamlnodes import MAX_BYTES, Source  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text: save the file as UTF-8") from error
    except OSError as error:
        raise UsageError(f"{path}: the configuration can't be read: {error.strerror}") from error
    if all(line.strip() == "" or line.lstrip().startswith("#") for line in text.removeprefix("\ufeff").splitlines()):
        return {}
    source, found = Source(str(path)), {}
    root: MappingNode = source.compose(text, "the configuration")
    for node, value in source.entries(root, "the configuration"):
        key = node.value
        if key not in KEYS:
            if key in ("run", "resources"):
                raise source.error(node, f"`{key}` belongs into a job file; {PROJECT_FILE} holds settings: rename it")
            raise source.error(node, unknown(key))
        setting = source.text(value, key)
        if problem := refusal(key, setting):
            raise source.error(value, problem)
        found[key] = Setting(setting, f"{path}:{node.start_mark.line + 1}")
    return found


def edited(text: str, key: str, value: str | None) -> str:
    """A settings file's text with one key set, or with None taken out; every other line stays as it is. Pure."""
    kept, dropping = [], False
    for line in text.removeprefix("\ufeff").splitlines():
        dropping = bool(re.match(rf"['\"]?{key}['\"]?\s*:", line)) or (dropping and line[:1] in (" ", "\t"))
        if not dropping:
            kept.append(line)
    return "".join(f"{line}\n" for line in [*kept, *([] if value is None else [f"{key}: {value}"])])


def _project_file() -> Path | None:
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the current folder was removed
        return None
    return next((path for folder in (here, *here.parents) if (path := folder / PROJECT_FILE).is_file()), None)
