"""The values of a job's secrets on this computer: one 0600 file in the job's folder, until the job is over.

They come from the environment that launches, travel inside the SSH stream, and enter nothing else: no record, store,
bucket, argument, tag, user data or log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.provisioner.errors import CloudtrainError, NotFound, UsageError
from cloudtrain.provisioner.home import Home
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.ports import Store
from cloudtrain.provisioner.spec import JobSpec

FILE = "secrets.json"


def require_secrets(spec: JobSpec, environ: Mapping[str, str]) -> None:
    """Raise UsageError where a secret of the job has no value in the environment."""
    unset = [name for name in spec.secrets if not environ.get(name)]
    if unset:
        several = "are" if len(unset) > 1 else "is"
        exports = " ".join(f"{name}=…" for name in unset)
        raise UsageError(
            f"secrets: {', '.join(unset)} {several} not set in this shell, or empty: `export {exports}` and repeat, "
            "or take the name out of the job file"
        )


def keep_secrets(spec: JobSpec, environ: Mapping[str, str], job_dir: Path) -> None:
    """Write the values of the job's secrets from the environment, whole or not at all; nothing for a job without any.

    Raises UsageError where one is not set.
    """
    require_secrets(spec, environ)
    if not spec.secrets:
        return
    text = json.dumps({name: environ[name] for name in spec.secrets})  # ASCII: it also carries what is no UTF-8
    path = job_dir / FILE
    temporary = path.with_name(f".{FILE}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def secrets_missing(record: JobRecord, home: Home) -> tuple[str, ...]:
    """The names of the job's secrets that this computer has no value of."""
    kept = _read(home.job_dir(record.job_id))
    return tuple(name for name in record.spec.secrets if name not in kept)


def kept_secrets(record: JobRecord, job_dir: Path) -> dict[str, str]:
    """The values, by name. Raises CloudtrainError where one is not here."""
    kept = _read(job_dir)
    missing = [name for name in record.spec.secrets if name not in kept]
    if missing:
        raise CloudtrainError(
            f"the value of {', '.join(missing)} is not on this computer, so job {record.job_id} can't be started on a "
            f"machine: set it and run `cloudtrain adopt {record.job_id}`"
        )
    return {name: kept[name] for name in record.spec.secrets}


def drop_where_over(home: Home, store: Store) -> None:
    """Delete the values of every job that is over, or that another computer drives now. Idempotent."""
    for path in home.root.glob(f"jobs/*/{FILE}"):
        try:
            record = store.get(path.parent.name).record
        except NotFound:
            continue  # being launched at this moment
        if record.status.final or record.driver != home.id:
            path.unlink(missing_ok=True)


def _read(job_dir: Path) -> dict[str, str]:
    try:
        kept = json.loads((job_dir / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}
