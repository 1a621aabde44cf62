"""Lines for people: broken between words on a terminal that is narrower, and nowhere else."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.provisioner.cli import words
from cloudtrain.provisioner.cli.words import fit

from .world import World


def test_a_command_to_be_copied_stays_in_one_piece() -> None:
    text = "next: `cloudtrain logs -f digits-4e6f06` follows it, `cloudtrain down digits-4e6f06` ends it"
    assert fit(text, 80).split("\n") == [
        "next: `cloudtrain logs -f digits-4e6f06` follows it,",
        "  `cloudtrain down digits-4e6f06` ends it",
    ]
    assert fit(text, 20).split("\n") == [
        "next:",
        "  `cloudtrain logs -f digits-4e6f06`",
        "  follows it,",
        "  `cloudtrain down digits-4e6f06`",
        "  ends it",
    ]


def test_blanks_and_indentation_stay() -> None:
    text = "digits  RUNNING  step 9\n  /data  1.0 KiB  s3://bucket/key"
    assert fit(text, 80) == text
    assert fit(text, 20) == "digits  RUNNING\n  step 9\n  /data  1.0 KiB\n    s3://bucket/key"


def test_a_backtick_alone_is_a_sign_like_any_other() -> None:
    assert fit("a ` b c d", 4) == "a `\n  b\n  c\n  d"


@given(st.text(alphabet="ab `\n", max_size=60), st.integers(5, 30))
def test_no_word_is_lost_and_lines_fit(text: str, room: int) -> None:
    fitted = fit(text, room)
    assert fitted.split() == text.split()
    for line in fitted.split("\n"):
        assert len(line) <= room or "`" in line or " " not in line.strip()


def test_errors_and_results_fit_the_terminal_and_pipes_get_whole_lines(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add()
    piped = world.run("show", "digits"), world.run("show", "nope")
    assert piped[1][2].count("\n") == 1
    monkeypatch.setenv("COLUMNS", "40")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    on_terminal = world.run("show", "digits"), world.run("show", "nope")
    for (code, *texts), (same, *wider) in zip(on_terminal, piped, strict=True):
        assert code == same
        for text, whole in zip(texts, wider, strict=True):
            assert max((len(line) for line in text.splitlines() if "`" not in line), default=0) <= 40, text
            if "Bill" not in whole:  # a table becomes blocks of lines
                assert text.split() == whole.split()
    assert words.columns() == 40
