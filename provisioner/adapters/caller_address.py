"""The addresses that AWS, and machines with a private address, see this computer at."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable

from cloudtrain.provisioner.errors import CloudUnreachable

_HOST = "checkip.amazonaws.com"  # AWS's own; used in the EC2 user guide, "Security group rules" (read 2026-11)
_TIMEOUT_S = 10
_LOOPBACK = "127.0.0.1"


def caller_address(cloud: str) -> Callable[[], str]:
    """How to learn the caller's IPv4 address: on AWS it is asked for each time, since a laptop moves."""
    return (lambda: _LOOPBACK) if cloud == "local" else public_address


def kept_for(seconds: float, ask: Callable[[], str], now: Callable[[], float] = time.monotonic) -> Callable[[], str]:
    """``ask``, whose answer serves everybody for so long: of a thousand jobs that start, one asks. Thread-safe."""
    lock = threading.Lock()
    kept: tuple[float, str] | None = None

    def address() -> str:
        nonlocal kept
        with lock:
            if kept is None or now() - kept[0] > seconds:
                answer = ask()
                kept = (now(), answer)
            return kept[1]

    return address


def route(private: str) -> str | None:
    """This computer's own address on its way to a private one (a VPN's, say); None where there is no way.

    Nothing is sent: connecting a datagram socket only looks the route up.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((private, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None


def public_address() -> str:
    """This computer's public IPv4 address. Blocks at most some 10 s. Raises CloudUnreachable.

    Asked without a proxy, since SSH will not go through one either.
    """
    connection = http.client.HTTPSConnection(_HOST, timeout=_TIMEOUT_S, context=ssl.create_default_context())
    try:
        connection.request("GET", "/")
        text = connection.getresponse().read(100).decode("ascii", "replace").strip()
        return str(ipaddress.IPv4Address(text))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CloudUnreachable(f"this computer's public address could not be learnt from {_HOST}: {error}") from error
    finally:
        connection.close()
