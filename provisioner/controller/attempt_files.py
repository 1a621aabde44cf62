"""What an attempt needs on this computer before its machine exists: keys and user data, made once, kept 0600."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cloudtrain.provisioner.adapters.keys import ed25519_pair
from cloudtrain.provisioner.adapters.userdata import cloud_config
from cloudtrain.provisioner.decide.limits import BOOT_DEADLINE_S
from cloudtrain.provisioner.home import write_private
from cloudtrain.provisioner.model import Attempt, Endpoint, Image, JobRecord
from cloudtrain.provisioner.ports import Target
from cloudtrain.provisioner.spec import AwsOptions


@dataclass(frozen=True, slots=True)
class Pair:
    """A key pair as stored. The private half never leaves this file but for the user data (host key)."""

    private: str
    public: str

    def __repr__(self) -> str:
        return f"Pair({self.public!r})"


class AttemptFiles:
    """One job's keys. Everything is written whole or not at all, so a controller that died finds the same again."""

    def __init__(self, job_dir: Path, record: JobRecord) -> None:
        self._dir = job_dir
        self._record = record

    @property
    def options(self) -> AwsOptions:
        """How the job wants its machines made and reached."""
        return self._record.spec.aws

    def user_data(self, attempt: Attempt, hard_deadline_at: float) -> str:
        """The machine's cloud-config: the same text at each call for one attempt, as an idempotent launch needs. At
        ``hard_deadline_at`` of the first call the machine ends itself, whatever is said to it."""
        path = self._dir / f"attempt-{attempt.generation}.user-data"
        if not path.exists():
            host = self._pair(f"attempt-{attempt.generation}.host-key", f"host of {self._record.job_id}")
            client = self._pair("client-key", f"cloudtrain {self._record.job_id}")
            asked_at = attempt.launch_asked_at or attempt.claimed_at  # the computer may have slept since the claim
            text = cloud_config(
                client_public_key=client.public,
                host_private_key=host.private,
                host_public_key=host.public,
                boot_deadline_at=asked_at + BOOT_DEADLINE_S,
                hard_deadline_at=hard_deadline_at,
            )
            _write_once(path, text)
        return path.read_text(encoding="utf-8")

    def target(self, attempt: Attempt, endpoint: Endpoint, image: Image) -> Target:
        """How to reach the attempt's machine: its pinned host key, and the job's client key."""
        client = self._pair("client-key", f"cloudtrain {self._record.job_id}")
        private = self._dir / "client-key.openssh"
        if not private.exists():
            _write_once(private, client.private)
        return Target(endpoint, image.login_user, self.accepted(attempt), private)

    def accepted(self, attempt: Attempt) -> tuple[str, ...]:
        """The public host keys that the attempt's machine may show: the one of its user data, until one of its own has
        been seen to serve; both in between."""
        try:
            kept = msgspec.json.decode(self._accepted(attempt).read_bytes(), type=tuple[str, ...])
        except FileNotFoundError:
            return (self._thrown_in(attempt),)
        return kept

    def own_key(self, attempt: Attempt) -> str | None:
        """The machine's own host key, once that is the only one which is accepted."""
        accepted = self.accepted(attempt)
        return accepted[0] if accepted != (self._thrown_in(attempt),) and len(accepted) == 1 else None

    def accept(self, attempt: Attempt, keys: tuple[str, ...]) -> None:
        """Accept these host keys of the attempt's machine from now on, and no others. Durable on return."""
        write_private(self._accepted(attempt), msgspec.json.encode(keys).decode())

    def _accepted(self, attempt: Attempt) -> Path:
        return self._dir / accepted_name(attempt.generation)

    def _thrown_in(self, attempt: Attempt) -> str:
        return self._pair(f"attempt-{attempt.generation}.host-key", f"host of {self._record.job_id}").public

    def _pair(self, name: str, comment: str) -> Pair:
        path = self._dir / f"{name}.json"
        if not path.exists():
            pair = ed25519_pair(comment)
            _write_once(path, msgspec.json.encode(Pair(pair.private_openssh, pair.public)).decode())
        return msgspec.json.decode(path.read_bytes(), type=Pair)


def accepted_name(generation: int) -> str:
    """The file that holds the host keys which an attempt's machine may show, once there is another than the first."""
    return f"attempt-{generation}.accepted-keys.json"


def _write_once(path: Path, text: str) -> None:
    """Create a 0600 file whole; the first of two writers wins."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
