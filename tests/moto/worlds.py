"""moto in process, and what a test may do to it: refuse a call, lose a reply, look at requests."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import ReadTimeoutError
from moto.core.models import botocore_stubber
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ssm import models as ssm

from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.ec2 import Ec2Cloud
from cloudtrain.provisioner.adapters.images import IMAGES
from cloudtrain.provisioner.model import Machine

ACCOUNT = "123456789012"
AMI = "ami-0123456789abcdef0"
ADDRESS = "203.0.113.7"

Look = Callable[[AWSPreparedRequest], None]


def prepare_account(clients: Clients) -> None:
    """What a launch needs to be there, and moto has not: the instance profile, and the parameters of the images."""
    clients.client("iam", "us-east-1").create_instance_profile(InstanceProfileName="cloudtrain-machine")
    make: Any = ssm.Parameter
    for region in ("us-east-1", "us-west-2"):
        known = ssm.ssm_backends[ACCOUNT][region]._parameters
        for image in set(IMAGES.values()):
            ami = AMI if image.architecture == "x86_64" else AMI.replace("0123", "a64a")
            register(ami, region, name="Deep Learning AMI Ubuntu 24.04", architecture=image.architecture)
            name = image.ssm_parameter
            known[name] = [make(ACCOUNT, name, ami, "String", None, None, None, utcnow(), 1, "text")]


def register(ami: str, region: str, **more: Any) -> None:
    """Make an image of this account known in a region."""
    backend = ec2_backends[ACCOUNT][region]
    given = {
        "name": "mine",
        "architecture": "x86_64",
        "root_device_name": "/dev/sda1",
        "root_device_type": "ebs",
    } | more
    backend.amis[ami] = Ami(backend, ami, owner_id=ACCOUNT, region_name=region, **given)


class MotoWorld:
    """EC2's adapter on moto."""

    def __init__(self, clients: Clients, job: str) -> None:
        self.clients = clients
        self.job = job
        self.address = ADDRESS
        self.cloud = Ec2Cloud(clients, address=lambda: self.address)
        self._undo: list[Callable[[], None]] = []

    def close(self) -> None:
        """Take back what was changed in the shared clients."""
        while self._undo:
            self._undo.pop()()

    def until(self, holds: Callable[[], bool]) -> None:
        """moto takes one step of a machine's life at each look."""
        for _ in range(5):
            if holds():
                return
        raise AssertionError("never held")

    def refuse_once(self, code: str) -> None:
        self.refuse("RunInstances", code, status=500, times=1)  # capacity errors come with HTTP 500

    def lose_reply(self) -> None:
        def lose(request: AWSPreparedRequest) -> None:
            botocore_stubber(event_name="before-send.ec2.RunInstances", request=request)
            raise ReadTimeoutError(endpoint_url=str(request.url))

        self.on_send("RunInstances", lose, times=1)

    def interrupt(self, machine: Machine) -> None:
        pytest.fail(f"moto interrupts nothing: {machine.instance_id}")

    def on_send(self, action: str, look: Look, *, times: int | None = None) -> None:
        """Let a function see each request of an EC2 action in us-east-1, and raise what it likes before moto acts."""
        self._register(f"before-send.ec2.{action}", action, lambda request, **_: look(request), times)

    def on_call(self, action: str, look: Callable[[], None]) -> None:
        """Let a function know of each call of an EC2 action in us-east-1, before botocore does anything with it."""
        self._register(f"before-parameter-build.ec2.{action}", action, lambda **_: look(), None)

    def refuse(
        self,
        action: str,
        code: str,
        message: str = "no",
        *,
        status: int = 400,
        times: int | None = None,
        having: str = "",
    ) -> None:
        """Refuse an EC2 action in us-east-1, where its parameters hold a text. The call doesn't reach moto."""
        parsed = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status, "RequestId": "req-1"},
        }
        reply = SimpleNamespace(status_code=status)

        def answer(params: Any, **_: Any) -> Any:
            return (reply, parsed) if having in str(params["body"]) else None

        self._register(f"before-call.ec2.{action}", action, answer, times)

    def _register(self, event: str, action: str, answer: Callable[..., Any], times: int | None) -> None:
        ec2, left = self.clients.client("ec2", "us-east-1"), [times]
        client: Any = self.clients.launcher("us-east-1") if action == "RunInstances" else ec2

        def handle(**arguments: Any) -> Any:
            if left[0] == 0:
                return None
            left[0] = left[0] if left[0] is None else left[0] - 1
            return answer(**arguments)

        client.meta.events.register_first(event, handle)
        self._undo.append(lambda: client.meta.events.unregister(event, handle))
