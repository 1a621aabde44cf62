"""How a machine is reached: straight, by its private address, or through somebody. Pure.

``ssh_proxy`` becomes the text of a ProxyCommand. What goes into it is checked first, so that no value of a job file or
of the cloud can bring a word, an option or a ``%`` token of its own; it means the same to a shell, to ssh and to shlex.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from cloudtrain.provisioner.errors import RemoteError, UsageError
from cloudtrain.provisioner.jobfile.values import REGION
from cloudtrain.provisioner.model import Endpoint, Machine
from cloudtrain.provisioner.spec import AwsOptions

SSM = "ssm"
INSTANCE_CONNECT = "instance-connect"

_BASTION = re.compile(
    r"(?P<user>[A-Za-z_][A-Za-z0-9._-]{0,31})@(?P<host>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}))(?::(?P<port>[0-9]{1,5}))?"
)
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")

# BatchMode: nobody is there to answer. The bastion's host key, our key for it and hops before it are the user's own
# ssh's business. A connection of theirs that is open already is used; none is left open behind.
_SSH_OPTIONS = (
    "-o BatchMode=yes -o ControlMaster=no -o ConnectTimeout=15 -o ServerAliveInterval=15 -o ServerAliveCountMax=3"
)


class Admits(StrEnum):
    """Whom a machine's security group lets in to its SSH port."""

    CALLER = "caller"  # this computer's public address
    VPC = "vpc"  # the machine's own network
    ROUTE = "route"  # the address that this computer's packets into the machine's network bear
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Bastion:
    """A computer that SSH goes through. ``port`` None: what the user's own ssh configuration says, else 22."""

    user: str
    host: str
    port: int | None


def parse(ssh_proxy: str) -> Bastion | str:
    """What ``ssh_proxy`` names: a bastion, SSM or INSTANCE_CONNECT. Raises UsageError."""
    if ssh_proxy in (SSM, INSTANCE_CONNECT):
        return ssh_proxy
    match = _BASTION.fullmatch(ssh_proxy)
    port = int(match["port"]) if match and match["port"] else None
    if match is None or (port is not None and not 1 <= port <= 65535):
        raise UsageError(f"ssh_proxy {ssh_proxy!r}: write USER@BASTION, USER@BASTION:PORT, ssm or instance-connect")
    return Bastion(match["user"], match["host"], port)


def programs(ssh_proxy: str | None) -> tuple[str, ...]:
    """The programs on this computer that a proxy needs."""
    way = None if ssh_proxy is None else parse(ssh_proxy)
    if way is None:
        return ()
    return {SSM: ("aws", "session-manager-plugin"), INSTANCE_CONNECT: ("aws",)}.get(str(way), ("ssh",))


def admits(options: AwsOptions) -> tuple[Admits, ...]:
    """Whom the security group must let in, and nobody else (docs/reaching.md)."""
    way = None if options.ssh_proxy is None else parse(options.ssh_proxy)
    if way == SSM:
        return (Admits.NOBODY,)  # the machine's own SSM agent connects to it
    if way is not None:
        return (Admits.VPC,)
    return (Admits.CALLER,) if options.public_ip else (Admits.VPC, Admits.ROUTE)


def way(options: AwsOptions, machine: Machine, region: str) -> tuple[Endpoint, str | None]:
    """The address of a machine's SSH server, and the command that is the connection to it (None: connect by TCP).

    Raises RemoteError while the machine has no such address.
    """
    private = options.ssh_proxy is not None or not options.public_ip
    # A machine of the embedded cloud that is this computer's neighbour has no private address, and needs no proxy.
    endpoint = machine.private if private and machine.private is not None else machine.endpoint
    if endpoint is None:
        kind = "private" if private else "public"
        raise RemoteError(f"machine {machine.instance_id} has no {kind} address yet; it is looked up again")
    if options.ssh_proxy is None or endpoint is not machine.private:
        return endpoint, None
    return endpoint, proxy_command(options.ssh_proxy, machine.instance_id, region, endpoint)


def login_command(bastion: Bastion) -> str:
    """A command that only logs in at a bastion: ssh ends with 255 where it could not (ssh(1), exit status)."""
    return f"ssh -T {_SSH_OPTIONS}{_port(bastion)} -l {bastion.user} -- {bastion.host} true"


def _port(bastion: Bastion) -> str:
    return "" if bastion.port is None else f" -p {bastion.port}"


def proxy_command(ssh_proxy: str, instance_id: str, region: str, endpoint: Endpoint) -> str:
    """The command whose stdin and stdout are the connection to the machine's SSH server. Raises UsageError.

    Sources, 2026-11: ssh(1) -W; AWS Systems Manager guide, "Allow and control permissions for SSH connections through
    Session Manager"; EC2 guide, "Connect using EC2 Instance Connect Endpoint" (a tunnel lives for an hour at most).
    """
    way = parse(ssh_proxy)
    for value, form in ((instance_id, _INSTANCE), (region, REGION), (endpoint.host, _ADDRESS)):
        if not form.fullmatch(value):
            raise UsageError(f"{value!r} can't stand in a proxy command: it is no instance id, region or address")
    if isinstance(way, Bastion):
        return f"ssh {_SSH_OPTIONS} -W {endpoint.host}:{endpoint.port:d}{_port(way)} -l {way.user} -- {way.host}"
    if way == SSM:
        return (
            f"aws ssm start-session --target {instance_id} --region {region} "
            f"--document-name AWS-StartSSHSession --parameters portNumber={endpoint.port:d}"
        )
    return (
        f"aws ec2-instance-connect open-tunnel --instance-id {instance_id} --region {region} "
        f"--remote-port {endpoint.port:d}"
    )
