"""What tests ask of the embedded cloud's account."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import boto3
import botocore.session
from botocore.exceptions import ClientError

from cloudtrain.provisioner.account.setup_plan import Wanted
from cloudtrain.provisioner.adapters.account_parts import account, parts
from cloudtrain.provisioner.adapters.account_setup import State, survey
from cloudtrain.provisioner.adapters.identity import identify
from cloudtrain.provisioner.localcloud.client import ACCOUNT
from cloudtrain.provisioner.names import INSTANCE_PROFILE
from tests.moto.local_server import REGION, Cloud

BUCKET = f"cloudtrain-{ACCOUNT}-{REGION}-an"
PROFILE = {"IamInstanceProfile": {"Name": INSTANCE_PROFILE}}


def code(call: Callable[[], object]) -> str:
    """The error that a call meets; "" where it meets none."""
    try:
        call()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def states(cloud: Cloud, it: Wanted) -> dict[str, State]:
    me = identify(cloud.clients, it.region)
    return {part.what: seen.state for part, seen in survey(parts(account(cloud.clients, me, it))).items()}


def machine(cloud: Cloud) -> Callable[[str], Any]:
    """Clients that sign as a machine's role does, by the keys that its metadata service gives it."""
    instance_id = cloud.up(**PROFILE)
    path = f"{instance_id}/latest/meta-data/iam/security-credentials/{INSTANCE_PROFILE}"
    token = cloud.server.overlay._imds.answer(
        "PUT", f"{instance_id}/latest/api/token", {"x-aws-ec2-metadata-token-ttl-seconds": "60"}
    ).body
    keys = json.loads(cloud.server.overlay._imds.answer("GET", path, {"x-aws-ec2-metadata-token": token}).body)
    session: Any = boto3.Session(
        keys["AccessKeyId"], keys["SecretAccessKey"], keys["Token"], REGION, botocore.session.Session()
    )
    return lambda service: session.client(service, endpoint_url=cloud.state.endpoint_url)
