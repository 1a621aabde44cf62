"""What YAML would read as something else, and what we make of it. docs/job-file.md lists the classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudtrain.provisioner.errors import EXIT_USAGE, UsageError
from cloudtrain.provisioner.jobfile.reader import load
from cloudtrain.provisioner.spec import JobSpec

ROOT = Path(__file__).parents[2]
HEAD = "resources: {accelerators: T4:1}\n"  # one line
RUN = HEAD + "run: x\n"  # two lines


@dataclass(frozen=True)
class Refused:
    """At which line and column, and what it says."""

    place: str
    says: str


@dataclass(frozen=True)
class Read:
    """As which value."""

    value: object
    of: Callable[[JobSpec], object]


def env(value: object) -> Read:
    return Read((("A", value),), lambda spec: spec.envs)


def run(value: str) -> Read:
    return Read(value, lambda spec: spec.run)


TABLE: dict[str, tuple[str | bytes, Refused | Read]] = {
    # words that YAML 1.1 reads as true or false
    "no": (RUN + "envs: {A: no}", Refused("3:11", "YAML reads no as true or false: put it in quotes")),
    "yes": (RUN + "name: yes", Refused("3:7", "YAML reads yes as true or false: put it in quotes")),
    "on": (RUN + "envs: {A: on}", Refused("3:11", "put it in quotes")),
    "off": (RUN + "envs: {A: Off}", Refused("3:11", "put it in quotes")),
    "true as text": (RUN + "envs: {A: true}", Refused("3:11", "put it in quotes")),
    "y is a letter": (RUN + "envs: {A: y}", env("y")),
    "quoted no": (RUN + "envs: {A: 'no'}", env("no")),
    "yes for true": (
        "resources: {accelerators: T4, use_spot: yes}\nrun: x",
        Refused("1:41", "use_spot must be true or false, not 'yes'"),
    ),
    "quoted true": (
        "resources: {accelerators: T4, use_spot: 'true'}\nrun: x",
        Refused("1:41", "use_spot must be true or false, not 'true'"),
    ),
    "True": ("resources: {accelerators: T4, use_spot: True}\nrun: x", Read(True, lambda s: s.resources[0].use_spot)),
    "on as a key": (RUN + "on: x", Refused("3:1", "unknown key `on` in a job file")),
    # numbers
    "22:30, base sixty": (RUN + "envs: {A: 22:30}", Refused("3:11", "YAML reads 22:30 as a number: put it in quotes")),
    "22:30 in run": (HEAD + "run: 22:30", Refused("2:6", "YAML reads 22:30 as a number: put it in quotes")),
    "012, octal": (RUN + "envs: {A: 012}", Refused("3:11", "YAML reads 012 as a number: put it in quotes")),
    "08, text in YAML": (RUN + "envs: {A: 08}", env("08")),
    "1_000": (RUN + "envs: {A: 1_000}", Refused("3:11", "YAML reads 1_000 as a number: put it in quotes")),
    "0x10": (RUN + "envs: {A: 0x10}", Refused("3:11", "YAML reads 0x10 as a number: put it in quotes")),
    "0b11": (RUN + "envs: {A: 0b11}", Refused("3:11", "put it in quotes")),
    "1e3, text in YAML": (RUN + "envs: {A: 1e3}", env("1e3")),
    "1e3 as a price": (
        "resources: {accelerators: T4, max_hourly_cost: 1e3}\nrun: x",
        Read("1E+3", lambda spec: str(spec.resources[0].max_hourly_cost_usd)),
    ),
    ".5": (RUN + "envs: {A: .5}", Refused("3:11", "YAML reads .5 as a number: put it in quotes")),
    "1.10 keeps its zero": (RUN + "envs: {A: 1.10}", env("1.10")),
    "3.10 as a version": (RUN + "envs: {A: 3.10}", env("3.10")),
    "1.2.3": (RUN + "envs: {A: 1.2.3}", env("1.2.3")),
    ".inf": (RUN + "envs: {A: .inf}", Refused("3:11", "put it in quotes")),
    ".nan as a price": (
        "resources: {accelerators: T4, max_hourly_cost: .nan}\nrun: x",
        Refused("1:48", "max_hourly_cost must be a plain number (USD per hour), not '.nan'"),
    ),
    "a quoted number": (RUN + "num_nodes: '1'", Refused("3:12", "num_nodes must be a whole number, not '1'")),
    "+1": (RUN + "num_nodes: +1", Refused("3:12", "num_nodes must be a whole number, not '+1'")),
    "Arabic digits": (RUN + "num_nodes: \u0661", Refused("3:12", "num_nodes must be a whole number")),
    "a number as a key": (RUN + "8: x", Refused("3:1", "unknown key `8` in a job file")),
    "a number for a list": ("resources: {accelerators: [8]}\nrun: x", Refused("1:28", "YAML reads 8 as a number")),
    # dates
    "2026-11-30": (RUN + "name: 2026-11-30", Refused("3:7", "YAML reads 2026-11-30 as a date: put it in quotes")),
    "a moment": (RUN + "envs: {A: 2026-11-30T10:00:00Z}", Refused("3:11", "as a date: put it in quotes")),
    # nothing
    "a missing value": (HEAD + "run:", Refused("2:5", "run has no value: write text")),
    "~": (HEAD + "run: ~", Refused("2:6", "run has no value")),
    "null": (RUN + "name: null", Refused("3:7", "name has no value")),
    "null in envs": (RUN + "envs: {A: null}", Read(("A",), lambda spec: spec.secrets)),
    "an empty text in envs": (RUN + "envs: {A: ''}", env("")),
    "an empty section": (RUN + "envs:", Refused("3:6", "envs must hold `key: value` lines, not nothing")),
    "a section with comments only": (RUN + "checkpoint:\n  # keep: 3\n", Refused("3:12", "not nothing")),
    # keys
    "a key twice": (RUN + "run: y", Refused("3:1", "`run` is already set in line 2: keep one")),
    "a variable twice": (RUN + "envs: {A: x, A: y}", Refused("3:14", "`A` is already set in line 3: keep one")),
    "<<": (RUN + "<<: {name: a}", Refused("3:1", "merge keys (<<) are not supported: write the keys out")),
    "<< with an alias": (RUN + "envs:\n  <<: *common", Refused("4:7", "anchors and aliases are not supported")),
    "a list as a key": (RUN + "? [a, b]\n: c", Refused("3:3", "a key of a job file must be one word, not a list")),
    "a null key": (RUN + "~: x", Refused("3:1", "unknown key `~`")),
    "=": (HEAD + "run: =", Refused("2:6", "YAML reads = as a sign of its own: put it in quotes")),
    "a key without its blank": (
        HEAD + "run:x",
        Refused("2:1", "not a `key: value` line: the key is one word, a colon and a blank follow it"),
    ),
    "{A100:8} without a blank": (
        "resources:\n  accelerators: {A100:8, H100:8}\nrun: x",
        Read("{A100:8, H100:8}", lambda spec: spec.resources[0].accelerators),
    ),
    "a set of names": (
        "resources:\n  accelerators: {L4, T4}\nrun: x",
        Read("{L4:1, T4:1}", lambda spec: spec.resources[0].accelerators),
    ),
    # signs
    "a second colon": (
        HEAD + "run: python: train",
        Refused("2:12", "a second `: ` in this line: put the value in quotes"),
    ),
    "a tab for indentation": ("resources:\n\taccelerators: T4", Refused("2:1", "YAML allows no tab here: use spaces")),
    "a tab in a block": (HEAD + "run: |\n  if true; then\n  \tx\n  fi\n", run("if true; then\n\tx\nfi\n")),
    "@": (HEAD + "run: @x", Refused("2:6", "not valid YAML")),
    "% at the start": (HEAD + "run: %x", Refused("2:6", "not valid YAML")),
    "a # in the middle": (HEAD + "run: echo a#b # said", run("echo a#b")),
    "an open bracket": (HEAD + "run: [x", Refused("2:8", "not valid YAML")),
    "an open quote": (HEAD + "run: 'x", Refused("2:8", "not valid YAML")),
    "typographic quotes": (
        HEAD + "run: \u201cpython train.py\u201d",
        Refused("2:6", "typographic quote \u201c is part of"),
    ),
    "a no-break space": (HEAD + "run:\u00a0x", Refused("2:1", "U+00A0 looks like a blank")),
    "a no-break space inside": (HEAD + "run: python\u00a0train.py", Refused("2:6", "U+00A0 looks like a blank")),
    "a no-break space in quotes": (HEAD + "run: 'a\u00a0b'", run("a\u00a0b")),
    "a zero-width space": (RUN + "\u200bname: a", Refused("3:1", "U+200B looks like")),
    "a line separator": (HEAD + "run: a\u2028b", Refused("2:7", "U+2028 ends a line in YAML and in few editors")),
    "an emoji": (RUN + "envs: {A: \U0001f680}", env("\U0001f680")),
    "an emoji for a name": (RUN + "name: \U0001f680", Refused("3:7", "use a to z, 0 to 9")),
    "letters of another script": (RUN + "n\u0430me: a", Refused("3:1", "did you mean `name`?")),
    "NUL": (HEAD + "run: x\0", Refused("2:7", "the control character U+0000 is not allowed")),
    "NUL, escaped": (HEAD + 'run: "x\\0"', Refused("2:6", "U+0000 can't be part of a job")),
    "an escape beyond Unicode": (HEAD + 'run: "\\U00110000"', Refused("2:9", "not valid YAML")),
    # text
    "lines in a block": (HEAD + "run: |\n  a\n  b\n", run("a\nb\n")),
    "lines that fold": (HEAD + "run: >\n  a\n  b\n", run("a b\n")),
    "plain lines fold": (HEAD + "run: a\n  b\n", run("a b")),
    "quoted lines fold": (HEAD + 'run: "a\n  b"\n', run("a b")),
    "an empty block": (HEAD + "run: |\n", Refused("2:6", "run is empty")),
    "a very long line": (HEAD + f"run: {'x' * 200_000}", run("x" * 200_000)),
    "a very long key": (RUN + f"{'k' * 2000}: x", Refused("3:1", "not a `key: value` line")),
    # references and tags
    "an anchor": (HEAD + "run: &a x", Refused("2:6", "anchors and aliases are not supported: write the value out")),
    "billion laughs": ("a: &a [x]\nb: [*a, *a]", Refused("1:4", "anchors and aliases are not supported")),
    "a tag": (HEAD + "run: !!python/object/apply:os.system [x]", Refused("2:6", "tags such as")),
    "a tag for text": (HEAD + "run: !!str 1", Refused("2:6", "tags such as")),
    # the file
    "an empty file": ("", Refused("1:1", "the file is empty: a job needs at least `run` and `resources`")),
    "comments only": ("# a\n# b\n", Refused("1:1", "the file is empty")),
    "a list at the top": ("- run: x", Refused("1:1", "a job file must hold `key: value` lines, not a list")),
    "text at the top": ("train", Refused("1:1", "a job file must hold `key: value` lines, not text")),
    "---": ("---\n" + RUN, run("x")),
    "a second document": (RUN + "---\n" + RUN, Refused("3:1", "a second document: a job file holds one job")),
    "...": (RUN + "...\n", run("x")),
    "text after the end": (RUN + "...\nmore", Refused("4:1", "a second document")),
    "deep nesting": (HEAD + "run: " + "[" * 1000, Refused("2:15", "nested deeper than 10 levels")),
    "too long": ("#" * 300_000, Refused("1:1", "longer than 256 KiB: this is not a job file")),
    "a BOM": (b"\xef\xbb\xbf" + RUN.encode(), run("x")),
    "CRLF": (RUN.replace("\n", "\r\n").encode(), run("x")),
    "CRLF in a block": ((HEAD + "run: |\n  a\n  b\n").replace("\n", "\r\n").encode(), run("a\nb\n")),
    "CR alone": (RUN.replace("\n", "\r").encode(), run("x")),
    "UTF-16": (RUN.encode("utf-16"), Refused("1:1", "UTF-16 text: save the file as UTF-8")),
    "UTF-16 without a BOM": (RUN.encode("utf-16-le"), Refused("1:2", "the control character U+0000")),
    "Latin-1": (HEAD.encode() + b"run: caf\xe9", Refused("2:9", "not UTF-8 text: save the file as UTF-8")),
}


def test_there_are_at_least_forty() -> None:
    assert len(TABLE) >= 40


@pytest.mark.parametrize("name", TABLE)
def test_a_surprise_gives_the_documented_result(name: str, tmp_path: Path) -> None:
    text, want = TABLE[name]
    path = tmp_path / "job.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    if isinstance(want, Read):
        assert want.of(load(path)) == want.value
        return
    with pytest.raises(UsageError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{want.place}: ")
    assert want.says in message
    assert "\n" not in message
    assert caught.value.exit_code == EXIT_USAGE


def test_a_folder_is_no_job_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the job file can't be read: Is a directory"):
        load(tmp_path)
