"""Network namespaces: networks of our own inside this computer's kernel, which go with the last process inside.

Nothing here touches the computer's own network: interfaces are made in the namespaces, and none leads out of them.
What passes between a namespace and the rest are sockets of this process, made inside by a thread that went in.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from cloudtrain.provisioner.errors import CloudtrainError

T = TypeVar("T")

PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2"}  # name -> the package that has it
_SBIN = "/usr/sbin:/sbin:/usr/bin:/bin"
_CLONE_NEWNET = 0x40000000  # sched.h
_TIMEOUT_S = 10.0
_CHUNK_BYTES = 64 * 1024


def program(name: str) -> str:
    """The path of one of PROGRAMS. Raises CloudtrainError where it is not installed."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SBIN}")
    if path is None:
        raise CloudtrainError(f"`{name}` is not installed: install {PROGRAMS[name]}")
    return path


def trouble() -> str | None:
    """Why this process can make no namespace, in one line; None where it can. Blocks a few milliseconds."""
    if os.geteuid() != 0:
        return "they need root"
    for name, package in PROGRAMS.items():
        if shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SBIN}") is None:
            return f"`{name}` is not installed: install {package}"
    made = "ip link add name ct0 type veth peer name ct1 && ip link add br0 type bridge"
    command = [program("unshare"), "--net", "--uts", "/bin/sh", "-c", made]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603
    return f"the kernel refuses: {' '.join(done.stderr.split())}" if done.returncode else None


def entering(pid: int) -> list[str]:
    """What to put before a command so that it runs in the network of a process."""
    return [program("nsenter"), f"--net=/proc/{pid}/ns/net", "--"]


def await_own(pid: int) -> None:
    """Wait until a process that is on its way into a network of its own is there. Raises CloudtrainError."""
    here = Path("/proc/self/ns/net").stat().st_ino
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/ns/net").stat().st_ino != here:
                return
        time.sleep(0.002)
    raise CloudtrainError(f"process {pid} got no network of its own in {_TIMEOUT_S:g} s")


def configure(pid: int, commands: Iterable[str]) -> None:
    """Run `ip` commands in the network of a process. Raises CloudtrainError with what `ip` said."""
    done = subprocess.run(  # noqa: S603 - our own words
        [*entering(pid), program("ip"), "-batch", "-"],
        input="".join(f"{line}\n" for line in commands),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise CloudtrainError(f"the network of process {pid} can't be set up: {' '.join(done.stderr.split())}")


def inside(pid: int, do: Callable[[], T]) -> T:
    """What ``do`` returns or raises when it runs in the network of a process. A socket made there stays there."""
    answer: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            with Path(f"/proc/{pid}/ns/net").open("rb") as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            answer.append(do())
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=work, name=f"in the network of {pid}")  # it never comes back out: it ends
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return answer[0]


class Relay:
    """Passes connections to 127.0.0.1:``port`` inside a process's network on to the same place outside."""

    def __init__(self, pid: int, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._listener = inside(pid, lambda: socket.create_server(("127.0.0.1", port), backlog=64))
        threading.Thread(target=self._accept, name=f"relay {pid}", daemon=True).start()

    def close(self) -> None:
        """End it, and every connection. The sockets keep the network alive, so this is part of its end."""
        with self._lock:
            self._closed = True
            sockets, self._sockets = self._sockets | {self._listener}, set()
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._port), timeout=_TIMEOUT_S)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._closed:
                    near.close()
                    far.close()
                    return
                self._sockets |= {near, far}
            threading.Thread(target=self._join, args=(near, far), name="relay", daemon=True).start()

    def _join(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=_copy, args=(far, near), name="relay back", daemon=True)
        back.start()
        _copy(near, far)
        back.join()
        with self._lock:
            self._sockets -= {near, far}
        near.close()
        far.close()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
