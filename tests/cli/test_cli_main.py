"""The frame of the command line: help, speed, errors as one line, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from cloudtrain.provisioner import errors
from cloudtrain.provisioner.cli import main as frame
from cloudtrain.provisioner.cli.main import COMMANDS, HIDDEN, cli, main

HEAVY = ("boto3", "botocore", "paramiko", "torch", "numpy", "rich", "moto", "flask", "msgspec", "yaml", "tabulate")
WATCHED = """
import json, sys
from cloudtrain.provisioner.cli.main import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def modules_after(*args: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", WATCHED, *args], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    return list(modules)


@pytest.mark.parametrize("args", [["--help"], [], ["--version"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    assert not set(HEAVY) & set(modules_after(*args))


@pytest.mark.parametrize("line", ["ls", "cost", "config show", "plan templates/digits.yaml -o json"])
def test_what_answers_from_disk_imports_no_cloud(home: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert not (set(HEAVY) - {"msgspec", "yaml", "tabulate"}) & set(modules_after(*line.split()))


def commands() -> list[tuple[str, click.Command]]:
    """Every command with its full name, those of groups included."""
    with click.Context(cli) as ctx:
        todo = [(name, cli.get_command(ctx, name)) for name in COMMANDS]
    found: list[tuple[str, click.Command]] = []
    while todo:
        name, command = todo.pop(0)
        assert command is not None
        found.append((name, command))
        if isinstance(command, click.Group):
            todo += [(f"{name} {sub}", command.commands[sub]) for sub in command.commands]
    return found


def test_the_list_says_of_each_command_what_its_own_help_says() -> None:
    for name, command in commands():
        if name in COMMANDS:
            assert command.get_short_help_str(200) == COMMANDS[name], name
            assert command.hidden == (name in HIDDEN)


def test_each_command_has_help_with_an_example_that_is_called_so() -> None:
    for name, command in commands():
        text = command.help or ""
        assert "Example" in text, name
        if not isinstance(command, click.Group):
            assert f"cloudtrain {name}" in text, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (name, parameter.name)


def test_each_command_has_a_test_file_of_its_own() -> None:
    here = [path.name for path in Path(__file__).parent.glob("test_*.py")]
    for name in COMMANDS:
        assert any(name in file for file in here), name


@pytest.mark.parametrize("columns", [40, 80])
def test_help_fits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name, _ in commands():
        assert main([*name.split(), "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        narrow = columns < 80
        if narrow:  # examples and tables stay as they are
            lines = [line for line in lines if line.startswith("  -") or line[:2].strip()]
        spare = 4 * narrow  # click keeps ten columns for what stands beside a flag
        assert max(len(line) for line in lines) <= columns + spare, name


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes `cloudtrain boom` raise."""

    def prepare(error: BaseException) -> None:
        @click.command("boom")
        def command() -> None:
            raise error

        module = types.ModuleType("boom")
        module.__dict__["command"] = command
        monkeypatch.setitem(sys.modules, "cloudtrain.provisioner.cli.boom", module)
        monkeypatch.setitem(frame.COMMANDS, "boom", "Fail.")

    return prepare


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.CloudtrainError("what; do this"), 1),
        (errors.UsageError("what; do this"), 2),
        (errors.NotFound("what; do this"), 3),
        (errors.NoCapacity("what; do this"), 4),
        (errors.AccessError("what; do this"), 6),
        (errors.QuotaExceeded("what; do this", code="VcpuLimitExceeded"), 6),
        (errors.CloudError("what; do this", code="X"), 1),
        (errors.PoolUnavailable("what; do this", code="X"), 4),
        (errors.CloudUnreachable("what; do this"), 1),
        (errors.CloudGone("what; do this"), 1),
        (errors.RemoteError("what;\n  do this"), 1),
        (click.ClickException("what; do this"), 1),
        (OSError("what; do this"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_error_is_one_line_and_its_exit_code(
    failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    failing(error)
    assert main(["boom"]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", "cloudtrain: what; do this\n")


def test_a_full_disk_is_named(failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]) -> None:
    failing(OSError(28, "No space left on device", "/state/jobs.db"))
    assert main(["boom"]) == 1
    assert capsys.readouterr().err == "cloudtrain: No space left on device: /state/jobs.db\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_is_130(
    failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    failing(error)
    assert main(["boom"]) == 130
    assert capsys.readouterr().err.strip() == "cloudtrain: interrupted"


def test_a_fault_of_our_own_is_one_line_and_a_file(
    failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    failing(ZeroDivisionError("by\nzero"))
    assert main(["boom"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    (log,) = home.glob("crash-*.log")
    assert str(log) in err
    assert "ZeroDivisionError: by" in log.read_text()


def test_a_fault_without_a_home_to_write_to_is_still_one_line(
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    failing(ZeroDivisionError())
    assert main(["boom"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert str(next(tmp_path.glob("crash-*.log"))) in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["lanch"], "No such command 'lanch'"),
        (["ls", "--nope"], "No such option"),
        (["ls", "-o", "xml"], "'xml' is not one of"),
        (["launch"], "Missing argument 'JOB.yaml'"),
        (["show"], "Missing argument 'JOB'"),
    ],
)
def test_wrong_use_is_one_line_that_leads_to_the_help(
    capsys: pytest.CaptureFixture[str], args: list[str], words: str
) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "--help`" in err
    assert err.count("\n") == 1


def test_a_reader_that_leaves_early_is_no_error(home: Path) -> None:
    code = "import sys; from cloudtrain.provisioner.cli.main import main; sys.exit(main(['ls', '-o', 'json']))"
    script = f'{sys.executable} -c "{code}" | true; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_streams_that_were_closed_before_the_start_are_no_fault(home: Path, closed: str) -> None:
    code = "import sys; from cloudtrain.provisioner.cli.main import main; sys.exit(main(['config', 'show']))"
    done = subprocess.run(["bash", "-c", f'{sys.executable} -c "{code}" {closed}'], capture_output=True, check=False)
    assert done.returncode == 0
    assert not list(home.glob("crash-*"))


def test_no_color_means_none_on_a_terminal_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool | None] = []

    @click.command("boom")
    def command() -> None:
        seen.append(click.get_current_context().color)

    module = types.ModuleType("boom")
    module.__dict__["command"] = command
    monkeypatch.setitem(sys.modules, "cloudtrain.provisioner.cli.boom", module)
    monkeypatch.setitem(frame.COMMANDS, "boom", "Show.")
    for value in ("1", ""):
        monkeypatch.setenv("NO_COLOR", value)
        main(["boom"])
    assert seen == [False, None]
