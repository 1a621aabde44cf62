"""The command line: a thin skin over the application. Commands are imported when they are called.

``--help`` must stay as quick as a bare click program, so nothing here imports more than click and the error tree.
"""

from __future__ import annotations

import importlib
import io
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from cloudtrain import __version__
from cloudtrain.provisioner.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, CloudtrainError

AGAIN = "; it is tried again"  # as the adapters end what says nothing of the cloud

# name -> the one line of the list; the text is repeated here so that the list needs no import (a test compares them)
COMMANDS = {
    "launch": "Train: choose machines, run the job, bring the results home.",
    "plan": "Show where a job would run, and at what price.",
    "ls": "List jobs: how far they are and what they cost so far.",
    "show": "Show one job: attempts, events, bill.",
    "logs": "Print what a job's run has written.",
    "ssh": "Open a shell on a job's machine, or run a command there.",
    "stop": "Save a checkpoint and give the machine back; resumable.",
    "resume": "Go on with a stopped job from its last checkpoint.",
    "down": "End a job for good and leave nothing running.",
    "adopt": "Take over a job that another computer launched.",
    "cost": "What jobs cost, and why.",
    "tunnel": "Bring ports of a job's machine to this computer.",
    "setup": "Make what jobs need in your AWS account: a bucket and a role.",
    "doctor": "Check the account: what would fail a launch, and its fix.",
    "gc": "Find and end what jobs left in the account.",
    "local": "The cloud on this computer: start, stop, interrupt.",
    "config": "Defaults for flags: show, set, unset.",
    "completion": "Print the script that completes commands and jobs.",
    "controller": "Drive this home's jobs in the foreground.",
}
HIDDEN = ("controller",)
ENDING = ("stop", "down")  # what ends the spending is not kept from it by a wrong configuration, which may be anybody's
_CLICK_MINIMUM = 52  # a narrower terminal gets help that is too wide, unless click is told its width
UNCONFIGURED = ("config", "completion", "controller")  # they work where the configuration is wrong


def _imported(name: str) -> click.Command:
    command: click.Command = importlib.import_module(f"cloudtrain.provisioner.cli.{name}").command
    return command


class LazyGroup(click.Group):
    """A group whose commands are modules of this package, imported by name when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which a person meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        return _imported(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and let the configuration say what its flags are by default."""
        if ctx.resilient_parsing and args[0] in COMMANDS and not any(arg.startswith("-") for arg in args):
            from cloudtrain.provisioner.cli.complete import JOB_COMMANDS, JobCommand  # noqa: PLC0415 - for a shell's TAB

            if (wanted := args[0]) in JOB_COMMANDS:
                return wanted, JobCommand(wanted, lambda: _imported(wanted)), args[1:]
        name, command, rest = super().resolve_command(ctx, args)
        flags = rest[: rest.index("--")] if "--" in rest else rest
        helps = ctx.resilient_parsing or "-h" in flags or "--help" in flags
        if name is not None and command is not None and not helps and name not in UNCONFIGURED:
            from cloudtrain.provisioner.cli.defaults import default_map  # noqa: PLC0415 - not for --help

            try:
                ctx.default_map = {name: default_map(name, command)}
            except CloudtrainError as error:
                if name not in ENDING:
                    raise
                click.echo(f"{error}; {name} goes on without it", err=True)
        return name, command, rest

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a reader that has left is no error (click itself would exit with 1)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return _left_alone()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names that fit, without importing any of them."""
        return [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items()
            if name.startswith(incomplete) and name not in HIDDEN
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, text in COMMANDS.items() if name not in HIDDEN])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, prog_name="cloudtrain")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Finish a training run on rented GPUs for the least money, without watching over it.

    \b
    Example, on this computer alone:
      cloudtrain launch templates/digits.yaml --cloud local
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False  # click itself only looks whether it writes to a terminal
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(args: list[str] | None = None) -> int:
    """Run one command; returns its exit code. Every error is one line on stderr, never a traceback."""
    before = signal.getsignal(signal.SIGINT)
    try:
        return _outcome(args)
    except KeyboardInterrupt:  # one more, while something was said of the first
        return EXIT_INTERRUPTED
    finally:
        if args is None:  # we are the whole process, and all is said
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python would complain of one more while it shuts down
        elif threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _outcome(args: list[str] | None) -> int:
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name must not end the program in an ASCII terminal
    try:
        room = shutil.get_terminal_size().columns
        narrow = room if room < _CLICK_MINIMUM else None
        code = cli.main(args=args, prog_name="cloudtrain", standalone_mode=False, terminal_width=narrow)
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_OK
    except CloudtrainError as error:
        words = str(error)
        if words.endswith(AGAIN):  # the controller would; a command ends here
            words = f"{words.removesuffix(AGAIN)}; try again once the network, or the service, answers"
        return _complain(words, error.exit_code)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "cloudtrain"
        return _complain(f"{error.format_message().rstrip('.')}; see `{where} --help`", EXIT_USAGE)
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _complain("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        return _left_alone()
    except OSError as error:
        return _complain(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""), EXIT_ERROR)
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line for the person, the rest in a file
        return _complain(_crashed(error), EXIT_ERROR)


def _open_closed_streams() -> None:
    """Where a stream was closed before we started (`cloudtrain ls >&-`), Python has None: nothing is read or shown."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as we live


def _left_alone() -> int:
    """Whoever read us has left (`cloudtrain ls | head`): nothing more to say, and nothing to flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return EXIT_OK


def _complain(message: str, code: int) -> int:
    from cloudtrain.provisioner.cli.words import tell  # noqa: PLC0415 - only when something went wrong

    tell(f"cloudtrain: {' '.join(message.split())}", err=True)
    return code


def _crashed(error: Exception) -> str:
    """Write the traceback to a file and say where. Jobs are not touched: their controller is another process."""
    words = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    text = "".join(traceback.format_exception(error))
    name = time.strftime("crash-%Y%m%dT%H%M%SZ.log", time.gmtime())
    for place in (_home_folder, lambda: Path(tempfile.gettempdir())):
        try:
            folder = place()
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        except (OSError, CloudtrainError):
            continue
        return f"a fault of cloudtrain's own ({words}); running jobs go on; please report {folder / name}"
    return f"a fault of cloudtrain's own ({words}); running jobs go on; please report it"


def _home_folder() -> Path:
    from cloudtrain.provisioner.home import Home  # noqa: PLC0415 - only when something went wrong

    return Home.from_env().root


if __name__ == "__main__":
    sys.exit(main())
