"""What the EC2 adapter asks in the life of a machine, each call as it was made, judged by the printed user policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cloudtrain.provisioner.account import policies
from cloudtrain.provisioner.account.setup_plan import wanted
from cloudtrain.provisioner.localcloud.rights import Asked, verdict
from tests.contract.cloud_contract import REGION, launch_request
from tests.moto.worlds import ACCOUNT, MotoWorld
from tests.unit.test_policies import launch_asks

OWNER = "AIDAOWNER"
IT = wanted(ACCOUNT, REGION, OWNER)
POLICIES = [policies.user_policy(IT), policies.look_policy(IT)]
NAMED = {  # the parameters that say what a call changes, and of which kind that is
    "InstanceIds": "instance",
    "GroupId": "security-group",
    "VolumeId": "volume",
    "NetworkInterfaceId": "network-interface",
    "KeyPairId": "key-pair",
    "SpotInstanceRequestIds": "spot-instances-request",
}


class Recorded:
    """Every call of some clients, with what it was asked and the tags that its things had just then."""

    def __init__(self, world: MotoWorld) -> None:
        self.world, self.asked, self.quiet = world, list[Asked](), False
        clients: list[Any] = [world.clients.client("ec2", REGION), world.clients.client("ssm", REGION)]
        for client in (*clients, world.clients.launcher(REGION)):
            client.meta.events.register_first("provide-client-params.*.*", self.note)

    def note(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        if self.quiet:
            return
        self.quiet = True
        try:
            self.asked += self.asks(model.service_model.signing_name, model.name, params)
        finally:
            self.quiet = False

    def asks(self, service: str, name: str, params: dict[str, Any]) -> Iterator[Asked]:
        action, arn = f"{service}:{name}", f"arn:aws:ec2:{REGION}:{ACCOUNT}:"
        me: dict[str, str | tuple[str, ...]] = {"aws:userid": OWNER}
        if name == "RunInstances":
            yield from (replace(a, context={**a.context, **me}) for a in launch_asks(params))
        elif name == "CreateSecurityGroup":
            (spec,) = params["TagSpecifications"]
            keys = tuple(tag["Key"] for tag in spec["Tags"])
            tags = {f"aws:requesttag/{tag['Key']}": tag["Value"] for tag in spec["Tags"]}
            yield Asked(action, f"{arn}security-group/*", {**me, **tags, "aws:tagkeys": keys})
            yield Asked(action, f"{arn}vpc/vpc-1", me)
            made = {**me, "ec2:createaction": name, "aws:tagkeys": keys}
            yield Asked("ec2:CreateTags", f"{arn}security-group/*", made)
        elif service == "ec2" and not name.startswith(("Describe", "Get")):
            (key,) = set(NAMED) & set(params)
            for thing in [params[key]] if isinstance(params[key], str) else params[key]:
                yield Asked(action, f"{arn}{NAMED[key]}/{thing}", {**me, **self.tags(thing)})
        else:
            resource = f"arn:aws:ssm:{REGION}::parameter{params['Name']}" if name == "GetParameter" else "*"
            yield Asked(action, resource, me)

    def tags(self, thing: str) -> dict[str, str]:
        ec2: Any = self.world.clients.client("ec2", REGION)
        shown = ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [thing]}])["Tags"]
        return {f"aws:resourcetag/{tag['Key'].lower()}": tag["Value"] for tag in shown}


def test_a_machines_whole_life_stays_within_the_printed_rights(moto_world: MotoWorld) -> None:
    world, job = moto_world, moto_world.job
    seen = Recorded(world)
    world.cloud.prepare(job, OWNER, [REGION])
    world.address = "203.0.113.9"  # the laptop moves: the old address goes out of the group
    world.cloud.prepare(job, OWNER, [REGION])
    request = launch_request(world)
    world.cloud.find_image(request.image, REGION)
    world.cloud.price(request.attempt.pool)
    machine = world.cloud.launch(request)
    world.until(lambda: world.cloud.machines(job, [REGION])[0].state != "pending")
    world.cloud.terminate(REGION, [machine.instance_id])
    world.until(lambda: world.cloud.machines(job, [REGION])[0].gone)
    world.cloud.sweep(job, [REGION])
    actions = {asked.action for asked in seen.asked}
    assert {
        *("ec2:RunInstances", "ec2:CreateTags", "ec2:TerminateInstances", "ec2:CreateSecurityGroup", "iam:PassRole"),
        *("ec2:AuthorizeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress", "ec2:DeleteSecurityGroup"),
        *("ec2:DescribeInstances", "ssm:GetParameter", "ec2:DescribeSpotPriceHistory"),
    } <= actions
    assert [asked for asked in seen.asked if verdict(POLICIES, asked) != "allow"] == []
    changing = [a for a in seen.asked if any(key.endswith("tag/cloudtrain:owner") for key in a.context)]
    assert len(changing) >= 8
    for asked in changing:
        stranger = {**asked.context, "aws:userid": "AIDASTRANGER"}
        assert verdict(POLICIES, replace(asked, context=stranger)) == "none", asked


@pytest.mark.parametrize(
    "action", ["ec2:StopInstances", "ec2:ModifyInstanceAttribute", "iam:CreateUser", "ec2:RunInstances"]
)
def test_what_the_program_never_does_is_not_allowed(action: str) -> None:
    asked = Asked(action, f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/i-1", {"aws:userid": OWNER})
    assert verdict(POLICIES, asked) == "none"
