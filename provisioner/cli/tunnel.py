"""``cloudtrain tunnel``: ports of a job's machine on this computer's own loopback, over the pinned SSH connection."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from dataclasses import dataclass

import click

from cloudtrain.provisioner.cli import sshing
from cloudtrain.provisioner.cli.complete import live_job
from cloudtrain.provisioner.cli.jobs import find, open_store
from cloudtrain.provisioner.cli.words import say
from cloudtrain.provisioner.errors import EXIT_OK, NotFound, RemoteError, UsageError
from cloudtrain.provisioner.home import Home

_LOOPBACK = "127.0.0.1"
_UP = "up"
_GRACE_S = 5.0
_WAIT_S = 3.0


@dataclass(frozen=True, slots=True)
class Port:
    """``remote`` of the machine's loopback as ``local`` of ours."""

    local: int
    remote: int

    @property
    def option(self) -> str:
        """As ssh's -L wants it."""
        return f"{_LOOPBACK}:{self.local}:{_LOOPBACK}:{self.remote}"


@click.command("tunnel", short_help="Bring ports of a job's machine to this computer.")
@click.argument("job", metavar="JOB", shell_complete=live_job)
@click.argument("ports", metavar="[LOCAL:]PORT...", nargs=-1, required=True)
def command(job: str, ports: tuple[str, ...]) -> int:
    """Bring ports of a job's machine to this computer: TensorBoard, a notebook, a dashboard.

    Only programs on this computer can use them, and on the machine only what listens there. Ctrl-C ends it. When the
    connection is lost, or the job goes on elsewhere, it is made again.

    \b
    Examples:
      cloudtrain tunnel digits 6006
      cloudtrain tunnel digits 8889:8888 6006
    """
    wanted = [_parse(text) for text in ports]
    program = sshing.require_ssh()
    for port in wanted:
        _require_free(port, job)
    home = Home.from_env()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended however: ssh must not stay behind
    try:
        _hold(program, sshing.way_to(home, job), wanted, again=False)
        while True:
            _hold(program, _next_way(home, job), wanted, again=True)
    except KeyboardInterrupt:
        say(f"the tunnel is closed; next: `cloudtrain show {job}`")
        return EXIT_OK


def _next_way(home: Home, job: str) -> sshing.Way:
    """The way to the machine that the job has now, waited for. Raises NotFound once the job is over or stopped."""
    from cloudtrain.provisioner.adapters.clock import SystemClock  # noqa: PLC0415 - beside its one use

    said = False
    while True:
        try:
            return sshing.way_to(home, job)
        except NotFound:
            if find(open_store(home), job).record.status.resting:
                raise
            if not said:
                say(f"{job} has no machine now; waiting for its next one")
            said = True
        SystemClock().sleep(_WAIT_S)


def _parse(text: str) -> Port:
    match = re.fullmatch(r"(?:([0-9]{1,5}):)?([0-9]{1,5})", text)
    numbers = [int(n or match[2]) for n in match.groups()] if match else []
    if not numbers or not all(1 <= n <= 65535 for n in numbers):
        raise UsageError(f"{text!r} is no port: write PORT, or LOCAL:PORT such as 8889:8888, from 1 to 65535")
    return Port(*numbers)


def _require_free(port: Port, job: str) -> None:
    try:
        socket.create_server((_LOOPBACK, port.local)).close()
    except PermissionError as error:
        other = f"`cloudtrain tunnel {job} {port.local + 8000}:{port.remote}`"
        raise UsageError(f"port {port.local} of this computer is for root alone: use another, {other}") from error
    except OSError as error:
        other = f"`cloudtrain tunnel {job} {min(port.local + 1, 65535)}:{port.remote}`"
        raise UsageError(f"port {port.local} of this computer is taken: use {other}") from error


def _hold(program: str, way: sshing.Way, ports: list[Port], *, again: bool) -> None:
    """Keep the tunnel until it breaks. Raises RemoteError where it does not come up; KeyboardInterrupt ends it."""
    forwards = [word for port in ports for word in ("-L", port.option)]
    # ssh runs the local command once it is logged in and listens on the ports (ssh_config(5), LocalCommand).
    options = ["-o", "ExitOnForwardFailure=yes", "-o", "PermitLocalCommand=yes", "-o", f"LocalCommand=echo {_UP}"]
    with subprocess.Popen(  # noqa: S603 - the system's ssh, our own words
        [program, "-F", str(way.config), "-N", "-T", *options, *forwards, way.alias],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() == _UP:
                for port in ports:
                    click.echo(f"http://{_LOOPBACK}:{port.local}  port {port.remote} of {way.job_id}")
                say("made again" if again else "Ctrl-C ends it")
                process.stdout.read()
                process.wait()
                say("the connection was lost; looking for the machine again")
                return
            process.wait()
        finally:
            _end(process)
    raise RemoteError(
        f"no tunnel to {way.job_id} (ssh ended with {process.returncode}, its words are above); "
        f"try `cloudtrain ssh {way.job_id} -- true`"
    )


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
