from __future__ import annotations

import http.client
import io
from typing import Any

import pytest

from cloudtrain.provisioner.adapters import caller_address
from cloudtrain.provisioner.errors import CloudUnreachable


class Answering:
    """An HTTPS connection that gives one answer, or one error."""

    answer: bytes | Exception = b""
    closed = 0

    def __init__(self, host: str, **options: Any) -> None:
        assert host == "checkip.amazonaws.com"
        assert 0 < options["timeout"] <= 10

    def request(self, method: str, path: str) -> None:
        assert (method, path) == ("GET", "/")

    def getresponse(self) -> io.BytesIO:
        if isinstance(self.answer, Exception):
            raise self.answer
        return io.BytesIO(self.answer)

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> type[Answering]:
    kind = type("Fresh", (Answering,), {"closed": 0})
    monkeypatch.setattr(http.client, "HTTPSConnection", kind)
    return kind


def test_the_address_is_read_and_the_connection_closed(connection: type[Answering]) -> None:
    connection.answer = b"203.0.113.7\n"
    assert caller_address.caller_address("aws")() == "203.0.113.7"
    assert connection.closed == 1


@pytest.mark.parametrize(
    "answer", [b"", b"<html>a captive portal</html>", b"2001:db8::1", b"10.0.0.1, 1.2.3.4", OSError("no route")]
)
def test_anything_else_opens_nothing(connection: type[Answering], answer: bytes | Exception) -> None:
    connection.answer = answer
    with pytest.raises(CloudUnreachable, match=r"checkip\.amazonaws\.com"):
        caller_address.public_address()
    assert connection.closed == 1


def test_on_the_embedded_cloud_it_is_loopback() -> None:
    assert caller_address.caller_address("local")() == "127.0.0.1"


def test_an_address_serves_all_who_ask_soon_after() -> None:
    at, asked = [0.0], iter(["203.0.113.1", "203.0.113.2", "203.0.113.3"])
    address = caller_address.kept_for(10.0, lambda: next(asked), lambda: at[0])
    assert [address() for _ in range(3)] == ["203.0.113.1"] * 3
    at[0] = 10.5
    assert address() == "203.0.113.2"


def test_an_address_that_could_not_be_learnt_is_asked_for_again() -> None:
    tries: list[int] = []

    def ask() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise CloudUnreachable("no network")
        return "203.0.113.1"

    address = caller_address.kept_for(10.0, ask, lambda: 0.0)
    with pytest.raises(CloudUnreachable):
        address()
    assert address() == "203.0.113.1"
