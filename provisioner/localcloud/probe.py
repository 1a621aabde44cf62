"""What stands for a public SSH server: `doctor` asks whether this network lets SSH out to it."""

from __future__ import annotations

import contextlib
import socket
import threading

BANNER = b"SSH-2.0-cloudtrain_probe\r\n"


class Probe:
    """A port of 127.0.0.1 that says what an SSH server says first, and hangs up. Closed: connections are refused."""

    def __init__(self) -> None:
        self.port = 0
        self._lock = threading.Lock()
        self._server: socket.socket | None = None

    def open(self) -> None:
        """Listen; on the same port as before, where it is still free."""
        with self._lock:
            if self._server is not None:
                return
            server = socket.socket()
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                server.bind(("127.0.0.1", self.port))
            server.listen(8)
            self.port = server.getsockname()[1]
            self._server = server
        threading.Thread(target=_serve, args=(server,), name="ssh probe", daemon=True).start()

    def close(self) -> None:
        """Refuse connections. Repeating it is harmless."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # close alone would leave the thread in accept
            server.close()


def _serve(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            connection.sendall(BANNER)
