"""gitignore(5) patterns, as git reads them: one rule set per ignore file, the last matching line wins.

Paths are matched as characters, not bytes ("?" matches one "é"). Git's global and repository-private exclude files are
not read: what is shipped must follow from the folder alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_POSIX = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "\\x21-\\x7e",
    "lower": "a-z",
    "print": "\\x20-\\x7e",
    "punct": "!-/:-@\\[-`{-~",
    "space": " \\t\\n\\r\\f\\v",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of an ignore file. ``anchored``: matched against the whole path below the file, else the last name."""

    regex: re.Pattern[str]
    ignores: bool
    anchored: bool
    folders_only: bool


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """The rules of one file; ``folder`` is where it lies, relative to the root ("" or "a/b")."""

    folder: str
    rules: tuple[Rule, ...]

    def verdict(self, path: str, *, is_folder: bool) -> bool | None:
        """Whether ``path`` (relative to the root, below this file's folder) is ignored; None: no line speaks of it."""
        below = path[len(self.folder) + 1 :] if self.folder else path
        name = below.rpartition("/")[2]
        for rule in reversed(self.rules):
            if rule.folders_only and not is_folder:
                continue
            if rule.regex.fullmatch(below if rule.anchored else name):
                return rule.ignores
        return None


def ignored(files: Sequence[IgnoreFile], path: str, *, is_folder: bool) -> bool:
    """What the ignore files on the way from the root (first) to the path's folder (last) say: the deepest one wins.

    The caller does not descend into an ignored folder, so nothing inside can be included again, as in git.
    """
    for file in reversed(files):
        verdict = file.verdict(path, is_folder=is_folder)
        if verdict is not None:
            return verdict
    return False


def parse(text: str, folder: str = "") -> IgnoreFile:
    """The rules of an ignore file's text. A line that is no valid pattern matches nothing, as in git."""
    lines = text.removeprefix("\ufeff").split("\n")
    rules = (_rule(line.removesuffix("\r")) for line in lines)
    return IgnoreFile(folder, tuple(rule for rule in rules if rule is not None))


def _rule(line: str) -> Rule | None:
    if line.startswith("#"):
        return None
    line = _trimmed(line)
    ignores = not line.startswith("!")
    pattern = line if ignores else line[1:]
    folders_only = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    if not pattern:
        return None
    anchored = "/" in pattern
    pattern = pattern.removeprefix("/")
    try:
        regex = re.compile("".join(_translated(pattern)), re.DOTALL)
    except (re.error, _InvalidPattern):
        return None
    return Rule(regex, ignores, anchored, folders_only)


def _trimmed(line: str) -> str:
    """Without trailing spaces, unless a backslash keeps one."""
    bare = line.rstrip(" ")
    backslashes = len(bare) - len(bare.rstrip("\\"))
    return f"{bare} " if backslashes % 2 and len(bare) < len(line) else bare


class _InvalidPattern(Exception):
    pass


def _translated(pattern: str) -> Iterator[str]:
    """The pattern as pieces of a regular expression (git's wildmatch with WM_PATHNAME)."""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "*":
            piece, at = _stars(pattern, at)
        elif char == "?":
            piece, at = "[^/]", at + 1
        elif char == "[":
            piece, at = _bracket(pattern, at)
        elif char == "\\":
            if at + 1 == len(pattern):
                raise _InvalidPattern
            piece, at = re.escape(pattern[at + 1]), at + 2
        else:
            piece, at = re.escape(char), at + 1
        yield piece


def _stars(pattern: str, at: int) -> tuple[str, int]:
    end = at
    while end < len(pattern) and pattern[end] == "*":
        end += 1
    whole_name = (at == 0 or pattern[at - 1] == "/") and (end == len(pattern) or pattern[end] == "/")
    if end - at == 1 or not whole_name:
        return "[^/]*", end
    if end == len(pattern):
        return ".*", end
    return "(?:.*/)?", end + 1


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """A character class and where it ends. Raises _InvalidPattern where it does not end."""
    at += 1
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    first, body = at, ""
    while True:
        char = pattern[at : at + 1]
        if not char:
            raise _InvalidPattern
        if char == "]" and at > first:
            break
        named = re.compile(r"\[:([a-z]+):\]").match(pattern, at)
        if named:
            if named[1] not in _POSIX:
                raise _InvalidPattern
            body, at = body + _POSIX[named[1]], named.end()
            continue
        low, at = _class_char(pattern, at)
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
            high, at = _class_char(pattern, at + 1)
            body += f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
        else:
            body += re.escape(low)
    if not body:
        return ("[^/]" if negated else r"(?!)"), at + 1
    return (f"[^/{body}]" if negated else f"(?!/)[{body}]"), at + 1


def _class_char(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at] == "\\":
        if at + 1 == len(pattern):
            raise _InvalidPattern
        return pattern[at + 1], at + 2
    return pattern[at], at + 1
