"""How a machine is reached, and that no value can smuggle a word into the command that does it."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloudtrain.provisioner.errors import RemoteError, UsageError
from cloudtrain.provisioner.model import Endpoint, Machine, MachineState
from cloudtrain.provisioner.proxy import Admits, Bastion, admits, login_command, parse, programs, proxy_command, way
from cloudtrain.provisioner.spec import AwsOptions

PRIVATE = Endpoint("10.0.0.5", 22)
PUBLIC = Endpoint("203.0.113.9", 22)
MACHINE = Machine("i-0123456789abcdef0", "j", 1, "t", MachineState.RUNNING, 0.0, PUBLIC, PRIVATE)
REGION = "us-east-1"
BASTION = AwsOptions(ssh_proxy="me@bastion.example.com")
BAD = (
    *("", "bastion", "@b", "me@", "me@b:", "me@b:0", "me@b:65536", "me@b:22:22", "me@[::1]", "SSM", "me@é"),
    *("me@-oProxyCommand=x", "-l@b", "a b@c", "me@b;id", "me@$(id)", "me@`id`", "me@b\n", "me@%h", "me@b#", "me@'b'"),
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ubuntu@bastion.example.com", Bastion("ubuntu", "bastion.example.com", None)),
        ("ec2-user@10.1.2.3:2222", Bastion("ec2-user", "10.1.2.3", 2222)),
        ("me@an_alias", Bastion("me", "an_alias", None)),
        ("ssm", "ssm"),
        ("instance-connect", "instance-connect"),
    ],
)
def test_what_a_proxy_names(text: str, meant: Bastion | str) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bastion",
        "@b",
        "me@",
        "me@b:",
        "me@b:0",
        "me@b:65536",
        "me@-oProxyCommand=x",
        "-l@b",
        "a b@c",
        "me@b;id",
        "me@$(id)",
        "me@b\n",
        "me@%h",
        "SSM",
        "me@b:22:22",
        "me@`id`",
        "me@é",
        "me@b#",
        "me@'b'",
        "me@[::1]",
    ],
)
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UsageError, match="write USER@BASTION") as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60) | st.from_regex(r"[!-~]{1,20}@[!-~]{1,20}(:[0-9]{1,6})?", fullmatch=True))
@example("me@bastion:2222")
def test_no_text_brings_a_word_or_a_sign_of_its_own(text: str) -> None:
    try:
        command = proxy_command(text, MACHINE.instance_id, REGION, PRIVATE)
    except UsageError:
        return
    assert not set(command) & set("\n\"'`$;&|<>(){}[]*?!#~%\\")
    assert shlex.split(command) == command.split(" ")  # the same to a shell, to shlex and to ssh
    if isinstance(found := parse(text), Bastion):
        assert command.split(" ")[-2:] == ["--", found.host]
        assert login_command(found).split(" ")[-3:] == ["--", found.host, "true"]


@pytest.mark.parametrize(
    ("instance_id", "region", "host"),
    [
        ("i-0123456789abcdef0;id", REGION, "10.0.0.5"),
        ("i-1", REGION, "10.0.0.5"),
        ("i-0123456789abcdef0", "us-east-1 --debug", "10.0.0.5"),
        ("i-0123456789abcdef0", REGION, "10.0.0.5 -oProxyCommand=id"),
        ("i-0123456789abcdef0", REGION, "-10.0.0.5"),
    ],
)
def test_nothing_of_the_cloud_is_trusted_either(instance_id: str, region: str, host: str) -> None:
    for proxy in ("me@bastion", "ssm", "instance-connect"):
        with pytest.raises(UsageError, match="can't stand in a proxy command"):
            proxy_command(proxy, instance_id, region, Endpoint(host, 22))


def test_the_three_commands() -> None:
    via, command = way(replace(BASTION, ssh_proxy="me@bastion:2222"), MACHINE, REGION)
    assert via == PRIVATE
    assert command is not None
    assert command.startswith("ssh -o BatchMode=yes ")
    assert command.endswith(" -W 10.0.0.5:22 -p 2222 -l me -- bastion")
    assert way(AwsOptions(ssh_proxy="ssm"), MACHINE, REGION)[1] == (
        "aws ssm start-session --target i-0123456789abcdef0 --region us-east-1 "
        "--document-name AWS-StartSSHSession --parameters portNumber=22"
    )
    assert way(AwsOptions(ssh_proxy="instance-connect"), MACHINE, REGION)[1] == (
        "aws ec2-instance-connect open-tunnel --instance-id i-0123456789abcdef0 --region us-east-1 --remote-port 22"
    )


def test_the_address_is_the_one_that_the_job_uses() -> None:
    assert way(AwsOptions(), MACHINE, REGION) == (PUBLIC, None)
    assert way(AwsOptions(public_ip=False), MACHINE, REGION) == (PRIVATE, None)
    assert way(BASTION, MACHINE, REGION)[0] == PRIVATE
    neighbour = replace(MACHINE, endpoint=Endpoint("127.0.0.1", 4022), private=None)  # of the embedded cloud
    assert way(BASTION, neighbour, REGION) == (neighbour.endpoint, None)


def test_a_machine_without_its_address_yet_is_asked_again() -> None:
    with pytest.raises(RemoteError, match="no public address yet"):
        way(AwsOptions(), replace(MACHINE, endpoint=None), REGION)
    with pytest.raises(RemoteError, match="no private address yet"):
        way(BASTION, replace(MACHINE, endpoint=None, private=None), REGION)


@pytest.mark.parametrize(
    ("options", "who"),
    [
        (AwsOptions(), (Admits.CALLER,)),
        (AwsOptions(public_ip=False), (Admits.VPC, Admits.ROUTE)),
        (BASTION, (Admits.VPC,)),
        (replace(BASTION, public_ip=False), (Admits.VPC,)),
        (AwsOptions(ssh_proxy="instance-connect"), (Admits.VPC,)),
        (AwsOptions(ssh_proxy="ssm"), (Admits.NOBODY,)),
        (AwsOptions(ssh_proxy="ssm", public_ip=False), (Admits.NOBODY,)),
    ],
)
def test_a_group_admits_whom_the_way_needs_alone(options: AwsOptions, who: tuple[Admits, ...]) -> None:
    assert admits(options) == who


def test_the_programs_that_a_way_needs() -> None:
    assert programs(None) == ()
    assert programs("me@bastion") == ("ssh",)
    assert programs("ssm") == ("aws", "session-manager-plugin")
    assert programs("instance-connect") == ("aws",)
