"""What `ssh` and `tunnel` share: the machine that is meant, and an ssh configuration that trusts it and nobody else."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.provisioner.cli.jobs import find, open_store
from cloudtrain.provisioner.decide.attempts import live
from cloudtrain.provisioner.errors import CloudGone, CloudtrainError, NotFound, UsageError
from cloudtrain.provisioner.home import Home, write_private
from cloudtrain.provisioner.localcloud import client
from cloudtrain.provisioner.model import Attempt, JobRecord, Machine, MachineState, Observed
from cloudtrain.provisioner.ports import Target
from cloudtrain.provisioner.proxy import Bastion, parse
from cloudtrain.provisioner.spec import AwsOptions

CONFIG = "ssh_config"
KNOWN_HOSTS = "known_hosts"

# What an old ssh would still offer is taken out ("-", ssh_config(5)); what is best of the rest is ssh's own affair.
MODERN = (
    "KexAlgorithms -diffie-hellman-group1-*,diffie-hellman-group-exchange-*,*-sha1",
    "Ciphers -*-cbc*,arcfour*,blowfish*,cast128*",
    "MACs -*sha1*,*md5*,*ripemd*,umac-64*",
)
_SIGNATURES = {"ssh-rsa": "rsa-sha2-512,rsa-sha2-256"}  # of a pinned RSA key; never SHA-1


@dataclass(frozen=True, slots=True)
class Way:
    """A job's machine, and how ssh gets there: ``ssh -F CONFIG ALIAS``."""

    job_id: str
    attempt: Attempt
    entry: str  # of ssh's configuration
    config: Path  # a file that holds the entry alone
    venv: str | None  # the virtual environment that the image keeps its Python in

    @property
    def alias(self) -> str:
        """The host's name in the configuration."""
        return alias(self.job_id)


def alias(job_id: str) -> str:
    """How ssh calls a job's machine."""
    return f"cloudtrain-{job_id}"


def require_ssh() -> str:
    """The path of the system's ssh. Raises CloudtrainError where there is none."""
    program = shutil.which("ssh")
    if program is None:
        raise CloudtrainError("there is no `ssh` on PATH: install OpenSSH's client (openssh-client), then try again")
    return program


def require_way(options: AwsOptions, cloud: str, home: Home) -> None:
    """Raise where a job's machines could not be reached from here, before anything is spent. Logs in at a bastion."""
    from cloudtrain.provisioner.adapters.proxied import require_bastion, require_programs  # noqa: PLC0415 - as below

    if cloud == "local":
        running = client.find(home.local_home)
        if running is None or running.hosts != "netns":
            return  # its machines are this computer's neighbours
        if options.ssh_proxy is None or not isinstance(parse(options.ssh_proxy), Bastion):
            raise UsageError(
                "the local cloud's machines stand behind its bastion: write `ssh_proxy: root@cloudtrain-bastion` under "
                "resources.aws; `cloudtrain local status` tells how ssh gets there"
            )
    require_programs(options.ssh_proxy)
    require_bastion(options.ssh_proxy)


def way_to(home: Home, job: str, number: int | None = None) -> Way:
    """The way to a job's machine, that of attempt ``number`` or the newest that lives. Asks the cloud, some seconds at
    most. Raises NotFound where it has no machine that can be reached now."""
    from cloudtrain.provisioner.adapters.clock import SystemClock  # noqa: PLC0415 - `--help` must stay quick
    from cloudtrain.provisioner.adapters.proxied import require_programs  # noqa: PLC0415
    from cloudtrain.provisioner.controller.reach import image_of  # noqa: PLC0415
    from cloudtrain.provisioner.controller.wiring import reach  # noqa: PLC0415

    record = find(open_store(home), job).record
    attempt = _attempt(record, number)
    reached = reach(home, record, SystemClock())
    try:
        seen = Observed(machines=reached.cloud.machines(record.job_id, [attempt.pool.region]))
    except CloudGone as error:
        raise NotFound(f"job {record.job_id} has no machine any more: {error}") from error
    machine = seen.machine(attempt)
    if machine is None or machine.state is not MachineState.RUNNING or not machine.addressed:
        raise NotFound(_not_up(record, attempt, machine))
    target = reached.target(attempt, machine)
    if target.proxy_command is not None:
        require_programs(record.spec.aws.ssh_proxy)
    entry = _entry(record.job_id, attempt, target, reached.job_dir)
    config = reached.job_dir / CONFIG
    write_private(reached.job_dir / KNOWN_HOSTS, _known_hosts(record.job_id, attempt, target))
    write_private(config, entry)
    return Way(record.job_id, attempt, entry, config, image_of(attempt, record.spec.aws).venv)


def _attempt(record: JobRecord, number: int | None) -> Attempt:
    job_id = record.job_id
    if number is not None:
        named = [a for a in record.attempts if a.generation == number]
        if not named:
            raise NotFound(f"job {job_id} has no attempt {number}; `cloudtrain show {job_id}` lists them")
        return named[0]
    # One that was handed over still runs until EC2 takes it, but the job has gone on: the newest that lives is meant.
    living = [a for a in record.attempts if live(a) and a.instance_id is not None]
    if not living:
        then = "`cloudtrain logs` shows what it wrote" if record.status.resting else "it may get one soon"
        raise NotFound(f"job {job_id} ({record.status}) has no machine now: {then}; `cloudtrain show {job_id}`")
    return living[-1]


def _not_up(record: JobRecord, attempt: Attempt, machine: Machine | None) -> str:
    state = "not to be seen" if machine is None else str(machine.state)
    if machine is not None and machine.state is MachineState.PENDING:
        return f"the machine of job {record.job_id} is still booting; try again in a minute"
    return (
        f"the machine of job {record.job_id}, attempt {attempt.generation}, is {state}; "
        f"`cloudtrain show {record.job_id}` tells what became of it"
    )


def _known_hosts(job_id: str, attempt: Attempt, target: Target) -> str:
    """The pinned keys. The name is the attempt's own: the next machine has another key, and that is no attack."""
    keys = (" ".join(key.split()[:2]) for key in target.host_keys)  # of an adopted job, others' words: one line each
    return "".join(f"{_host_alias(job_id, attempt)} {key}\n" for key in keys)


def _host_key_algorithms(target: Target) -> str:
    """Those of the pinned keys alone: the server then shows a key that we know."""
    types = dict.fromkeys(key.split()[0] for key in target.host_keys)
    return ",".join(_SIGNATURES.get(name, name) for name in types)


def _host_alias(job_id: str, attempt: Attempt) -> str:
    return f"{alias(job_id)}-{attempt.generation}"


def _entry(job_id: str, attempt: Attempt, target: Target, job_dir: Path) -> str:
    """ssh_config(5), 2026-11. Nothing is asked, nothing is learnt, no agent is lent."""
    if any(c.isspace() or not c.isprintable() or c in '"%' for c in target.user):  # of an adopted record: others' words
        raise CloudtrainError(f"job {job_id} names a login user {target.user!r} that ssh's configuration can't hold")
    lines = [
        f"HostName {target.endpoint.host}",
        f"Port {target.endpoint.port}",
        f"User {target.user}",
        f"HostKeyAlias {_host_alias(job_id, attempt)}",
        f"UserKnownHostsFile {_quoted(job_dir / KNOWN_HOSTS)}",
        "GlobalKnownHostsFile /dev/null",
        f"HostKeyAlgorithms {_host_key_algorithms(target)}",
        *MODERN,
        "StrictHostKeyChecking yes",
        "UpdateHostKeys no",
        f"IdentityFile {_quoted(target.client_key)}",
        "IdentitiesOnly yes",
        "PreferredAuthentications publickey",
        "ForwardAgent no",
        "ConnectTimeout 20",
        "ServerAliveInterval 15",
        "ServerAliveCountMax 4",
    ]
    if target.proxy_command is not None:
        lines.append(f"ProxyCommand {target.proxy_command}")
    return f"Host {alias(job_id)}\n" + "".join(f"  {line}\n" for line in lines)


def _quoted(path: Path) -> str:
    """A path as ssh's configuration wants it: quoted, and without what it would expand."""
    text = str(path)
    if '"' in text or "\n" in text or "${" in text:
        raise CloudtrainError(f"ssh's configuration can't name {text!r}: set CLOUDTRAIN_HOME to another folder")
    return '"' + text.replace("%", "%%") + '"'
