"""The embedded cloud's process: ``python -m cloudtrain.provisioner.localcloud.daemon --home DIR``.

Started detached by ``client.ensure_up``. It serves the AWS API, the machines' metadata and the control calls on one
port of 127.0.0.1, runs the hosts, and leaves when told, when idle for long, or when its home is gone. ``kill -9``
leaves nothing running: the guardian, which notices by a pipe, ends what the hosts ran.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import importlib.metadata
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from cloudtrain.provisioner.adapters.redaction import Redactor
from cloudtrain.provisioner.localcloud.client import ALREADY_RUNNING, DAEMON_FILE, LOCK_FILE, LOG_FILE, process_started
from cloudtrain.provisioner.localcloud.state import LocalState, Options

log = logging.getLogger("cloudtrain.local")

_LOOK_S = 2.0
_LOCK_WAIT_S = 1.0


class Server:
    """The embedded cloud in this process: moto changed, the hosts, and an HTTP server in threads."""

    def __init__(self, state: LocalState, **parts: Any) -> None:
        """Bind a port; ``parts`` goes to Machines (``start``: what starts a host)."""
        from werkzeug.serving import make_server  # noqa: PLC0415 - after the lock

        from cloudtrain.provisioner.localcloud.control import Control  # noqa: PLC0415
        from cloudtrain.provisioner.localcloud.machines import Machines  # noqa: PLC0415
        from cloudtrain.provisioner.localcloud.overlay import Overlay  # noqa: PLC0415

        self.state = state
        self.machines = Machines(state, **parts)
        self.overlay = Overlay(state, Control(state, self.machines))
        self._server = make_server("127.0.0.1", 0, self.overlay, threaded=True, request_handler=_quiet_handler())
        self.port = int(self._server.port)
        state.endpoint_url = f"http://127.0.0.1:{self.port}/{state.secret}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="http", daemon=True)
        self._loader = threading.Thread(target=self._load, name="load", daemon=True)
        self._semantics: Any = None

    def start(self) -> None:
        """Serve at once. moto takes a second to load: the calls that need it wait, and whoever starts us need not."""
        self.machines.start()
        self.state.planted.probe.open()
        self._thread.start()
        self._loader.start()

    def _load(self) -> None:
        gc.disable()  # moto brings tables that stay: looking through them again and again is a third of the time
        try:
            from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - the slow part
                DomainDispatcherApplication,
                create_backend_app,
            )

            self.overlay.serve(DomainDispatcherApplication(create_backend_app))
            from cloudtrain.provisioner.localcloud.ec2_semantics import Semantics  # noqa: PLC0415

            self._semantics = Semantics(self.state, self.machines)
            self._semantics.install()
            self.overlay.ec2_ready.set()
            self.overlay.warm()
            self.machines.warm()
        except Exception:
            log.exception("moto could not be loaded")
            self.state.stop.set()
        finally:
            gc.enable()

    def close(self) -> None:
        """End every host, stop serving, and put moto back."""
        self.machines.close()
        self._loader.join()
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self.state.planted.probe.close()
        self.overlay.account.close()
        if self._semantics is not None:
            self._semantics.uninstall()


def _quiet_handler() -> type[Any]:
    from werkzeug.serving import WSGIRequestHandler  # noqa: PLC0415 - after the lock

    class Handler(WSGIRequestHandler):
        """No line per request, and none for a client that went away. The Date is the application's to give."""

        def send_response(self, code: int, message: str | None = None) -> None:
            """The status line alone."""
            self.send_response_only(code, message)

        def log_request(self, *args: object, **kwargs: object) -> None:
            """Nothing."""

        def connection_dropped(self, *args: object, **kwargs: object) -> None:
            """Nothing."""

    return Handler


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; the exit code."""
    arguments = _parse(argv)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Redactor("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for noisy in ("paramiko", "werkzeug", "botocore", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    home = Path(arguments.home).absolute()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = _lock(home / LOCK_FILE)
    if lock is None:
        log.info("another local cloud runs in %s", home)
        return ALREADY_RUNNING
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    # Nor what lies in the user's files: they are none of this cloud's affair, and one that can't be read would end it.
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    options = Options(
        arguments.hosts,
        arguments.boot,
        arguments.hide,
        arguments.keep,
        arguments.idle,
        arguments.seed,
        arguments.account,
    )
    state = _state(home, options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: state.stop.set())
    _run(state, home)
    lock.close()
    return 0


def _run(state: LocalState, home: Path) -> None:
    from cloudtrain.provisioner.localcloud import guardian  # noqa: PLC0415 - after the lock

    pipe = guardian.spawn(state.id, log=home / LOG_FILE)
    _forget_hosts(state, home)
    server = Server(state)
    server.start()
    _announce(state, server.port, home)
    log.info("up: %s, port %d, hosts %s", state.id, server.port, state.options.hosts)
    try:
        while not state.stop.wait(_LOOK_S):
            why = _reason_to_leave(state, home)
            if why is not None:
                log.info("leaving: %s", why)
                break
    finally:
        if _is_ours(state, home):
            (home / DAEMON_FILE).unlink()
        server.machines.close()
        os.close(pipe)
        log.info("down: %s", state.id)


def _forget_hosts(state: LocalState, home: Path) -> None:
    """Remove what the hosts of an earlier cloud left: a killed one leaves whole homes, checkpoints and all."""
    if (home / "hosts").exists():
        (home / "hosts").rename(home / f".old-{state.id}")
    for old in home.glob(".old-*"):
        remove = threading.Thread(target=shutil.rmtree, args=(old,), kwargs={"ignore_errors": True}, daemon=True)
        remove.start()


def _state(home: Path, options: Options) -> LocalState:
    from cloudtrain.pricing import catalog  # noqa: PLC0415 - after the lock
    from cloudtrain.pricing.model import CapacityType  # noqa: PLC0415

    offerings = catalog.load().offerings(*CapacityType)
    return LocalState(secrets.token_hex(6), home, options, offerings, time.time, secret=secrets.token_hex(16))


def _announce(state: LocalState, port: int, home: Path) -> None:
    document = {
        "id": state.id,
        "pid": os.getpid(),
        "process_started": process_started(os.getpid()),
        "port": port,
        "secret": state.secret,
        "hosts": state.options.hosts,
        "boot_s": state.options.boot_s,
        "account": state.options.account,
        "ssh_probe_port": state.planted.probe.port,
        "moto": importlib.metadata.version("moto"),
    }
    temporary = home / f".{DAEMON_FILE}.{os.getpid()}"
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(document, file)
    temporary.replace(home / DAEMON_FILE)


def _reason_to_leave(state: LocalState, home: Path) -> str | None:
    if not _is_ours(state, home):
        return f"{home / DAEMON_FILE} is gone"
    now = state.clock()
    with state.lock:
        ended = [life.ended_at or now for life in state.lives.values()]
    quiet_since = max([state.last_call_at, *ended])
    if now - quiet_since > state.options.idle_s:
        return f"no machine and no call for {state.options.idle_s:g} s"
    return None


def _is_ours(state: LocalState, home: Path) -> bool:
    try:
        return bool(json.loads((home / DAEMON_FILE).read_text())["id"] == state.id)
    except (OSError, ValueError, KeyError):
        return False


def _lock(path: Path) -> IO[bytes] | None:
    """The daemon's lock, held until the file is closed; None where another daemon holds it.

    ``client.find`` holds it for a moment as well, when it looks: hence the wait.
    """
    file = path.open("ab")
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                return None
            time.sleep(0.02)
        else:
            return file


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    default = Options()
    parser = argparse.ArgumentParser(prog="cloudtrain-local", description="The embedded cloud's process.")
    parser.add_argument("--home", required=True, help="the local home")
    parser.add_argument("--hosts", choices=("embedded", "sshd", "netns"), default=default.hosts)
    parser.add_argument("--boot", type=float, default=default.boot_s, help="seconds until a machine is up")
    parser.add_argument("--hide", type=float, default=default.hide_s, help="seconds until a new id is found")
    parser.add_argument("--keep", type=float, default=default.keep_s, help="seconds that an ended machine is listed")
    parser.add_argument("--idle", type=float, default=default.idle_s, help="seconds without use until it leaves")
    parser.add_argument("--seed", type=int, default=default.seed, help="of the simulated prices")
    parser.add_argument("--account", choices=("ready", "empty"), default=default.account, help="set up, or not yet")
    return parser.parse_args(argv)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # connections and moto's loading are threads that nobody waits for
