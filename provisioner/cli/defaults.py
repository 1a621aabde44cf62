"""The configuration as click's default map: what the flags of a command are when nobody types them."""

from __future__ import annotations

from typing import Any

import click

from cloudtrain.provisioner.settings import KEYS, Sources

# In `local`, a flag of the same name says something else: where to plant a fault, for example.
_LOCAL_KEYS = ("output",)


def default_map(name: str, command: click.Command) -> dict[str, Any]:
    """The values for a top-level command, those of a group's commands nested. Raises UsageError for a wrong file."""
    found = {key: setting.value for key, setting in Sources.here().found().items()}
    if name == "local":
        found = {key: value for key, value in found.items() if key in _LOCAL_KEYS}
    return _values(command, found) if found else {}


def _values(command: click.Command, found: dict[str, str]) -> dict[str, Any]:
    if isinstance(command, click.Group):
        return {name: _values(sub, found) for name, sub in command.commands.items()}
    return {
        option.name: (found[key],) if option.multiple else found[key]
        for option in command.params
        if isinstance(option, click.Option) and option.name is not None
        for key in KEYS
        if key in found and KEYS[key].flag in option.opts
    }
