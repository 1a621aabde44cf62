"""What every test gets: no network but loopback. And ``home``, for tests that keep state or talk to a cloud."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("cloudtrain", deadline=None)  # a busy computer is no fault of an example's
settings.load_profile("cloudtrain")


def _stays_here(host: object) -> bool:
    text = host.decode() if isinstance(host, bytes) else host
    return text is None or (isinstance(text, str) and (text in ("", "localhost", "::1") or text.startswith("127.")))


def _guarded(real: Callable[..., Any], host_of: Callable[..., object]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        host = host_of(*args, **kwargs)
        if not _stays_here(host):
            raise RuntimeError(f"a test reached for the network: {host!r}")
        return real(*args, **kwargs)

    return call


def _host_of_address(sock: socket.socket, address: object) -> object:
    inet = sock.family in (socket.AF_INET, socket.AF_INET6)
    return address[0] if inet and isinstance(address, tuple) else None


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection or a name look-up that would leave this machine raises RuntimeError. Covers this process only."""
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name), _host_of_address))
    monkeypatch.setattr(socket, "getaddrinfo", _guarded(socket.getaddrinfo, lambda host, *args, **kwargs: host))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty CLOUDTRAIN_HOME, and an environment in which no AWS account, file or role of the machine is found."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "CLOUDTRAIN_"))]:
        if name != "CLOUDTRAIN_REQUIRE_SSHD":
            monkeypatch.delenv(name)
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return path
