"""The guards that the other tests rely on."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import boto3
import pytest


def test_a_test_can_not_leave_the_machine() -> None:
    with pytest.raises(RuntimeError, match="reached for the network"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)  # TEST-NET-1, RFC 5737
    with pytest.raises(RuntimeError, match=r"ec2\.example"):
        socket.getaddrinfo("ec2.example", 443)
    with socket.socket(socket.AF_INET6) as sock, pytest.raises(RuntimeError, match="2001:db8"):
        sock.connect(("2001:db8::1", 80))


def test_loopback_and_unix_sockets_work(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(FileNotFoundError):
        sock.connect(str(tmp_path / "none"))


def test_home_is_empty_and_finds_no_credentials(home: Path) -> None:
    assert os.environ["CLOUDTRAIN_HOME"] == str(home)
    assert list(home.iterdir()) == []
    assert boto3.session.Session().get_credentials() is None
