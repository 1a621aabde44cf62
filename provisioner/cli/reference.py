"""The reference, made from the code: ``docs/cli.md``, ``docs/schemas/*.json`` and ``docs/errors.md``.

``python -m cloudtrain.provisioner.cli.reference docs`` (``make docs``) writes them; a test holds them to the code.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from cloudtrain.provisioner.adapters.aws_codes import ROWS, Kind
from cloudtrain.provisioner.cli.main import COMMANDS, HIDDEN, cli
from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.outputs import OUTPUTS, SCHEMA_VERSION

WIDTH = 80
HEAD = """# The command line

Made from the commands themselves by `make docs`; do not edit. What they end with: [exit-codes.md](exit-codes.md). What
flags are when nobody types them: [configuration.md](configuration.md).

"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, in the order of the list; those of a group after it."""
    root = click.Context(cli, info_name="cloudtrain")
    todo = [(name, cli.get_command(root, name)) for name in COMMANDS if name not in HIDDEN]
    while todo:
        name, command = todo.pop(0)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            todo = [(f"{name} {sub}", command.commands[sub]) for sub in command.commands] + todo


def page() -> str:
    """``docs/cli.md``."""
    found = list(commands())
    lines = [HEAD]
    for name, command in found:
        if " " not in name:
            lines.append(f"- [`{name}`](#cloudtrain-{name}): {command.get_short_help_str(200)}\n")
    for name, command in found:
        lines.append(f"\n## cloudtrain {name}\n\n```text\n{_help(name, command)}\n```\n")
        if name in OUTPUTS:
            forms = " or ".join(f"[{form.__name__}](schemas/{_file(form)})" for form in OUTPUTS[name])
            lines.append(f"\n`-o json` prints one object: {forms}.\n")
    return "".join(lines)


def _help(name: str, command: click.Command) -> str:
    root = click.Context(cli, info_name="cloudtrain", **cli.context_settings)
    context = click.Context(command, root, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
    return command.get_help(context)


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of everything that commands print, by file name."""
    forms = {form for printed in OUTPUTS.values() for form in printed}
    return {_file(form): _schema(form) for form in sorted(forms, key=lambda form: form.__name__)}


ERRORS_HEAD = """# AWS's errors, and what each means here

Made from the table in [`aws_codes.py`](../provisioner/adapters/aws_codes.py) by `make docs`; do not edit. What commands
end with: [exit-codes.md](exit-codes.md).

After a refusal, exactly what would say the same is left alone: 3 to 10 minutes for want of capacity, longer each time;
10 minutes for a quota or a region; a day for what does not change within hours. Each pool is asked once before any is
asked again. "Asked again" is with the same token, so that no second machine comes of it, after 1 to 45 seconds that
differ from job to job; a fault of AWS's own five times, then the next pool. A code that is not in the table costs a
launch that pool for a day, is told with its request id, and is not looped on; from any other call it is an error.

| code | HTTP | what follows | left alone | what you can do |
|---|---|---|---|---|
"""
_FOLLOWS = {
    Kind.POOL: "another pool is asked",
    Kind.QUOTA: "another pool is asked; the quota is named",
    Kind.ACCESS: "the job or command ends with 6",
    Kind.REGION: "another region is asked; without one, 6",
    Kind.OVER: "the machine is looked up by its tag; without one the attempt is over",
    Kind.UNKNOWN: "it is asked again",
    Kind.REQUEST: "the job or command ends with 2",
    Kind.MISSING: "it counts as gone",
    Kind.CONFLICT: "it is read again",
    Kind.REFUSED: "that one stays as it is, and is named",
}


def errors_page() -> str:
    """``docs/errors.md``."""
    return ERRORS_HEAD + "".join(
        f"| {code} | {row.status} | {_FOLLOWS[row.kind]} | {row.scope}{', for a day' if row.lasting else ''}"
        f" | {row.advice.replace('|', '/') or 'nothing'} |\n"
        for code, row in ROWS.items()
    )


def _file(form: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", form.__name__).lower() + ".json"


def _schema(form: type) -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(form)}


def breaks(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What a reader of the old form would miss in the new one: fields that are gone, or are something else."""
    gone = []
    for name, kind in old["$defs"].items():
        now = new["$defs"].get(name, {})
        for field, what in kind.get("properties", {}).items():
            if now.get("properties", {}).get(field) != what:
                gone.append(f"{name}.{field}")
        if (
            "properties" not in kind
            and "properties" not in now
            and not set(kind.get("enum", ())) <= set(now.get("enum", ()))
        ):
            gone.append(name)
    return gone


def write(docs: Path) -> None:
    """Write the page and the schemas. Raises CloudtrainError where a schema would break its readers."""
    folder = docs / "schemas"
    folder.mkdir(exist_ok=True)
    found = schemas()
    for name, schema in found.items():
        path = folder / name
        if path.exists():
            old = json.loads(path.read_text(encoding="utf-8"))
            if _version(old) == SCHEMA_VERSION and (gone := breaks(old, schema)):
                raise CloudtrainError(f"{path}: {', '.join(gone)} would change: raise outputs.SCHEMA_VERSION first")
        path.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    for path in folder.glob("*.json"):
        if path.name not in found:
            path.unlink()
    (docs / "cli.md").write_text(page(), encoding="utf-8")
    (docs / "errors.md").write_text(errors_page(), encoding="utf-8")
    for name, text in aws_files().items():
        path = docs.parent / "templates" / "aws" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def aws_files() -> dict[str, str]:
    """The policies and the template of an example account, by the files' names."""
    from cloudtrain.provisioner.account import setup_template  # noqa: PLC0415 - as the commands do
    from cloudtrain.provisioner.account.setup_plan import wanted  # noqa: PLC0415
    from cloudtrain.provisioner.cli import setup  # noqa: PLC0415

    it = wanted("123456789012", "us-east-1", "")
    found = setup_template.all_policies(it)
    policies = {f"{name}.json": json.dumps(policy, indent=2) + "\n" for name, policy in found.items()}
    return {**policies, "cloudformation.yaml": setup.as_yaml(setup_template.template(it))}


def _version(schema: dict[str, Any]) -> int:
    form = schema["$ref"].rpartition("/")[2]
    (version,) = schema["$defs"][form]["properties"]["schema_version"]["enum"]
    return int(version)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
