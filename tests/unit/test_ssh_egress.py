"""Whether SSH gets out of this network: one server of AWS's that is down says nothing of it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from cloudtrain.provisioner.account.facts import Egress
from cloudtrain.provisioner.adapters import account_facts
from cloudtrain.provisioner.adapters.account_facts import AWS_SSH, AWS_SSH_TOO

OTHER = ("ssh.example", 22)


@pytest.mark.parametrize(
    ("asked", "up", "found", "tried"),
    [
        (AWS_SSH, [AWS_SSH], AWS_SSH, [AWS_SSH]),
        (AWS_SSH, [AWS_SSH_TOO], AWS_SSH_TOO, [AWS_SSH, AWS_SSH_TOO]),
        (AWS_SSH, [], None, [AWS_SSH, AWS_SSH_TOO]),
        (OTHER, [AWS_SSH_TOO], None, [OTHER]),
    ],
)
def test_a_second_server_is_tried_where_the_first_is_silent(
    monkeypatch: pytest.MonkeyPatch,
    asked: tuple[str, int],
    up: list[tuple[str, int]],
    found: tuple[str, int] | None,
    tried: list[tuple[str, int]],
) -> None:
    addresses: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def connect(address: tuple[str, int], timeout: float) -> Iterator[None]:
        addresses.append(address)
        if address not in up:
            raise TimeoutError
        yield

    monkeypatch.setattr(socket, "create_connection", connect)
    name = f"{(found or asked)[0]}:22"
    assert account_facts._egress(asked) == Egress(name, None if found else "did not answer within 3 s")
    assert addresses == tried
