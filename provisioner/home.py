"""Where cloudtrain keeps its state on this computer: ``CLOUDTRAIN_HOME``, else the XDG state directory."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.provisioner.errors import UsageError


@dataclass(frozen=True, slots=True)
class Home:
    """One state directory, mode 0700. Each has its own controller; two homes may share one embedded cloud."""

    root: Path
    local_home: Path

    @classmethod
    def from_env(cls) -> Home:
        """The home that ``CLOUDTRAIN_HOME`` and ``CLOUDTRAIN_LOCAL_HOME`` name; made where it is missing."""
        root = home_folder()
        local = os.environ.get("CLOUDTRAIN_LOCAL_HOME")
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(root, expanded(local, "CLOUDTRAIN_LOCAL_HOME") if local else root / "local")

    @property
    def db(self) -> Path:
        """The SQLite store."""
        return self.root / "jobs.db"

    @property
    def id(self) -> str:
        """This home's own id, made once: the ``driver`` of the jobs that its controller drives."""
        path = self.root / "id"
        if not path.exists():
            temporary = path.with_name(f".id.{os.getpid()}")
            temporary.write_text(secrets.token_hex(8))
            try:
                os.link(temporary, path)  # the first of two wins
            except FileExistsError:
                pass
            finally:
                temporary.unlink()
        return path.read_text().strip()

    def job_dir(self, job_id: str) -> Path:
        """The folder of one job: snapshot, keys, logs."""
        path = self.root / "jobs" / job_id
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path


def home_folder() -> Path:
    """Where this environment's state lies, or would lie; nothing is made."""
    default = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return expanded(os.environ.get("CLOUDTRAIN_HOME") or f"{default}/cloudtrain", "CLOUDTRAIN_HOME")


def expanded(path: str, variable: str) -> Path:
    """A path that may begin with ``~``. Raises UsageError, naming the variable that decides, where nobody knows that
    home: ``~nobody``, or a user without one, as in some containers."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"{variable}: the folder {path!r} is not known ({error}): set it to a full path") from error


def log_path(job_dir: Path, generation: int) -> Path:
    """Our copy of an attempt's log."""
    return job_dir / "logs" / f"{generation:04d}.log"


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(text.encode("utf-8", "surrogateescape"))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
