"""YAML as nodes that know where they stand, so that every refusal is ``file:line:column: message``.

Stricter than YAML 1.1 on purpose. Text that YAML would silently turn into something else (``no``, ``22:30``, ``012``)
is refused, as are duplicate keys, anchors, aliases, merge keys, tags and second documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from decimal import Decimal
from typing import NamedTuple, Protocol

import yaml
from yaml.events import CollectionStartEvent, NodeEvent, ScalarEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from cloudtrain.provisioner.errors import UsageError

MAX_BYTES = 256 * 1024  # far above any job file, far below what makes a pure-Python parser slow
_MAX_DEPTH = 10

# No-break and other wide or invisible blanks, which come with text that was copied from a web page or a document.
_BLANKS = "\u00a0\u1680\u200b\u202f\u205f\u2060\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))

_YAML_BREAKS = "[\u0085\u2028\u2029]"  # YAML 1.1's line ends beside LF, CRLF and CR

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,14})")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][-+]?[0-9]{1,3})?")


class _Place(Protocol):
    """What PyYAML's marks have in common: both count from 0."""

    @property
    def line(self) -> int: ...

    @property
    def column(self) -> int: ...


class _Position(NamedTuple):
    line: int
    column: int


class _Refused(Exception):
    def __init__(self, mark: _Place | None, message: str) -> None:
        super().__init__(message)
        self.mark = mark


class _StrictLoader(yaml.SafeLoader):
    """Composes nodes and refuses what could surprise or blow up."""

    depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call] # not in the stubs
        if isinstance(event, NodeEvent) and event.anchor is not None:  # an alias names its anchor too
            raise _Refused(event.start_mark, "anchors and aliases are not supported: write the value out")
        if isinstance(event, (ScalarEvent, CollectionStartEvent)) and event.tag is not None:
            raise _Refused(event.start_mark, f"tags such as {event.tag} are not supported: write the plain value")
        if isinstance(event, ScalarEvent):
            if event.style is None and (problem := _looks_like_yaml(event)):
                raise _Refused(event.start_mark, problem)
            bad = next((c for c in event.value if c == "\0" or "\ud800" <= c <= "\udfff"), None)
            if bad is not None:
                raise _Refused(event.start_mark, f"the character U+{ord(bad):04X} can't be part of a job: take it out")
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Refused(event.start_mark, f"nested deeper than {_MAX_DEPTH} levels: no key needs that")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class Source:
    """A file's name and the readers of its nodes. Every reader raises UsageError at the node's place."""

    def __init__(self, name: str) -> None:
        self.name = name

    def error(self, node: Node, message: str) -> UsageError:
        """The refusal of a node."""
        return self._at(node.start_mark, message)

    def _at(self, mark: _Place | None, message: str) -> UsageError:
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        return UsageError(f"{self.name}:{line}:{column}: {message}")

    def compose(self, text: str, what: str = "a job file") -> MappingNode:
        """The file's one mapping; ``what`` the file is, for messages."""
        text = text.removeprefix("\ufeff")
        if len(text) > MAX_BYTES:
            raise self._at(None, f"longer than {MAX_BYTES // 1024} KiB: this is not {what}")
        breaker = re.search(_YAML_BREAKS, text)
        if breaker:
            place = _position(text[: breaker.start()])
            raise self._at(place, f"U+{ord(breaker[0]):04X} ends a line in YAML and in few editors: take it out")
        loader: _StrictLoader | None = None
        try:
            loader = _StrictLoader(text)
            node = loader.get_single_node()
        except _Refused as error:
            raise self._at(error.mark, str(error)) from error
        except ReaderError as error:
            place = _position(text[: error.position])
            message = f"the control character U+{ord(text[error.position]):04X} is not allowed: take it out"
            raise self._at(place, message) from error
        except yaml.MarkedYAMLError as error:
            line = _no_key(error, text)
            if line is not None:
                raise self._at(error.context_mark, line) from error
            raise self._at(error.problem_mark or error.context_mark, _syntax(error)) from error
        except (ValueError, OverflowError, IndexError) as error:  # PyYAML lets these out, e.g. for "\U00110000"
            raise self._at(loader.get_mark() if loader else None, f"not valid YAML: {error}") from error
        if node is None:
            raise self._at(None, "the file is empty: a job needs at least `run` and `resources`")
        return self.mapping(node, what)

    def mapping(self, node: Node, what: str) -> MappingNode:
        """The node as a mapping."""
        if not isinstance(node, MappingNode):
            raise self.error(node, f"{what} must hold `key: value` lines, not {_kind(node)}")
        return node

    def entries(self, node: Node, what: str) -> Iterator[tuple[ScalarNode, Node]]:
        """Keys and values in the file's order. A key that isn't one word, or is there twice, is refused."""
        seen: dict[str, int] = {}
        for key, value in self.mapping(node, what).value:
            if not isinstance(key, ScalarNode):
                raise self.error(key, f"a key of {what} must be one word, not {_kind(key)}")
            if key.value in seen:
                raise self.error(key, f"`{key.value}` is already set in line {seen[key.value]}: keep one")
            if key.value == "<<" and key.style is None:
                raise self.error(key, "merge keys (<<) are not supported: write the keys out")
            seen[key.value] = key.start_mark.line + 1
            yield key, value

    def known_entries(
        self, node: Node, what: str, served: Collection[str], refusal: Callable[[str], str]
    ) -> Iterator[tuple[str, Node]]:
        """As ``entries``, for a fixed set of keys; ``refusal`` gives the one line on any other."""
        for key, value in self.entries(node, what):
            if key.value not in served:
                raise self.error(key, refusal(key.value))
            yield key.value, value

    def items(self, node: Node) -> list[Node]:
        """The nodes of a list; a single value stands for a list of one."""
        return list(node.value) if isinstance(node, SequenceNode) else [node]

    def sequence(self, node: Node, what: str) -> list[Node]:
        """The nodes of a list that holds something."""
        if not isinstance(node, SequenceNode):
            raise self.error(node, f"{what} must be a list, each entry after `- `, not {_kind(node)}")
        if not node.value:
            raise self.error(node, f"{what} is empty: give it an entry, or take it out")
        return list(node.value)

    def is_null(self, node: Node) -> bool:
        """Whether the value was left out, or is ``null`` or ``~``."""
        return isinstance(node, ScalarNode) and _type(node) == "null"

    def scalar(self, node: Node, what: str, want: str) -> ScalarNode:
        """The node as a single value that is there."""
        if not isinstance(node, ScalarNode):
            raise self.error(node, f"{what} must be {want}, not {_kind(node)}")
        if self.is_null(node):
            raise self.error(node, f"{what} has no value: write {want}")
        return node

    def text(self, node: Node, what: str) -> str:
        """Text that is not blank; a plain value that YAML reads as another type must be quoted."""
        scalar = self.scalar(node, what, "text")
        if _type(scalar) != "str":
            raise self.error(node, f"{what}: YAML reads {scalar.value} as {_kind(scalar)}: put it in quotes")
        if not scalar.value.strip():
            raise self.error(node, f"{what} is empty: write text")
        return str(scalar.value)

    def text_or_number(self, node: Node, what: str) -> str:
        """Text as it is (it may be empty), or a plain decimal number as it is written."""
        scalar = self.scalar(node, what, "text or a number")
        if _type(scalar) == "str" or (_type(scalar) in ("int", "float") and _DECIMAL.fullmatch(scalar.value)):
            return str(scalar.value)
        raise self.error(node, f"{what}: YAML reads {scalar.value} as {_kind(scalar)}: put it in quotes")

    def boolean(self, node: Node, what: str) -> bool:
        """``true`` or ``false``, as YAML 1.2 spells them; YAML 1.1's yes, no, on and off are refused."""
        scalar = self.scalar(node, what, "true or false")
        if scalar.style is None and scalar.value in ("true", "True", "TRUE", "false", "False", "FALSE"):
            return bool(scalar.value.lower() == "true")
        raise self.error(node, f"{what} must be true or false, not {_shown(scalar)}")

    def integer(self, node: Node, what: str, *, minimum: int, maximum: int | None = None) -> int:
        """A plain whole number within its limits."""
        scalar = self.scalar(node, what, "a whole number")
        if scalar.style is not None or not _INTEGER.fullmatch(scalar.value):
            raise self.error(node, f"{what} must be a whole number, not {_shown(scalar)}")
        if int(scalar.value) < minimum:
            raise self.error(node, f"{what} must be at least {minimum}, not {scalar.value}")
        if maximum is not None and int(scalar.value) > maximum:
            raise self.error(node, f"{what} must be at most {maximum}, not {scalar.value}")
        return int(scalar.value)

    def positive_decimal(self, node: Node, what: str, unit: str) -> Decimal:
        """A plain number above zero, exactly as it is written."""
        scalar = self.scalar(node, what, f"a number ({unit})")
        if scalar.style is not None or not _DECIMAL.fullmatch(scalar.value):
            raise self.error(node, f"{what} must be a plain number ({unit}), not {_shown(scalar)}")
        if Decimal(scalar.value) <= 0:
            raise self.error(node, f"{what} must be above zero, not {scalar.value}")
        return Decimal(scalar.value)


def _position(before: str) -> _Position:
    """Where the text after ``before`` stands."""
    start = max(before.rfind("\n"), before.rfind("\r")) + 1
    return _Position(len(re.findall("\r\n|\r|\n", before)), len(before) - start)


def _type(node: ScalarNode) -> str:
    """YAML 1.1's idea of the value: str, int, float, bool, null, timestamp."""
    return str(node.tag).rpartition(":")[2]


def _shown(node: ScalarNode) -> str:
    return f"{node.value!r}" if len(node.value) <= 40 else f"{node.value[:40]!r}..."


def _kind(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    kinds = {
        "bool": "true or false",
        "int": "a number",
        "float": "a number",
        "timestamp": "a date",
        "null": "nothing",
        "value": "a sign of its own",
        "merge": "a sign of its own",
    }
    return kinds.get(_type(node), "text") if isinstance(node, ScalarNode) else "this"


def _looks_like_yaml(event: ScalarEvent) -> str | None:
    """Why plain text can't be what was meant: signs that look like YAML's quotes or blanks and are none."""
    if event.value[:1] in ("\u201c", "\u201d", "\u2018", "\u2019", "\u00ab"):
        return f"the typographic quote {event.value[0]} is part of the text here: use \" or '"
    blank = next((c for c in event.value if c in _BLANKS), None)
    if blank is not None:
        return f"U+{ord(blank):04X} looks like a blank or like nothing: use a blank, or put the text in quotes"
    return None


def _no_key(error: yaml.MarkedYAMLError, text: str) -> str | None:
    """What to say of a line that has no ``key: value``, as ``run:x``; None for other errors."""
    if "could not find expected ':'" not in (error.problem or "") or error.context_mark is None:
        return None
    line = re.split("\r\n|\r|\n", text)[error.context_mark.line]
    wide = next((c for c in line if c in _BLANKS), None)
    if wide is not None:
        return f"not a `key: value` line: U+{ord(wide):04X} looks like a blank: use a blank"
    return "not a `key: value` line: the key is one word, a colon and a blank follow it"


def _syntax(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's complaint in one line, with advice for the common ones."""
    problem = " ".join((error.problem or "not valid YAML").split())
    if "'\\t'" in problem:
        return "YAML allows no tab here: use spaces"
    if "mapping values are not allowed" in problem:
        return "a second `: ` in this line: put the value in quotes"
    if problem.startswith("but found another document") or "expected '<document start>'" in problem:
        return "a second document: a job file holds one job"
    return f"not valid YAML: {problem}"
