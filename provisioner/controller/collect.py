"""The way home: outputs and logs from the bucket to the launching computer, every byte checked."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path, PurePosixPath

from cloudtrain.provisioner.errors import CloudtrainError, NotFound
from cloudtrain.provisioner.home import log_path
from cloudtrain.provisioner.model import JobRecord
from cloudtrain.provisioner.ports import ObjectStore
from cloudtrain.trainer.contract import Keys


class Counted:
    """What ``collect`` reads a bucket through: ``bytes`` is what has come over the network."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.bytes = 0

    def get(self, key: str) -> tuple[bytes, str] | None:
        """As the bucket's."""
        found = self._objects.get(key)
        self.bytes += len(found[0]) if found is not None else 0
        return found

    def download(self, key: str, path: Path) -> None:
        """As the bucket's."""
        self._objects.download(key, path)
        self.bytes += path.stat().st_size


class CollectError(CloudtrainError):
    """Something is not home, and the person may be able to help it."""


def collect(record: JobRecord, objects: ObjectStore | Counted, job_dir: Path) -> int:
    """Download outputs to ``record.results`` and complete our copies of the logs; returns the number of files.

    Idempotent: a file that is there with the right digest is left alone. The logs lie in ``logs``, or in
    ``attempt-logs`` where the job has outputs of that name. Raises CloudUnreachable, CollectError.
    """
    try:
        return _collect(record, objects, job_dir)
    except OSError as error:
        words = error.strerror or str(error)
        raise CollectError(
            f"results can't be written to {error.filename or record.results} ({words}); make room for them there"
        ) from error


def _collect(record: JobRecord, objects: ObjectStore | Counted, job_dir: Path) -> int:
    keys = Keys(record.prefix)
    results = Path(record.results)
    manifest = objects.get(f"{keys.outputs()}.json")
    files = _outputs(manifest[0]) if manifest is not None else []
    taken = any(PurePosixPath(path).parts[:1] == ("logs",) for path, _ in files)
    logs = results / ("attempt-logs" if taken else "logs")
    for attempt in record.attempts:
        path = log_path(job_dir, attempt.generation)
        _complete_log(objects, keys.log(attempt.generation), path)
        if path.exists():
            logs.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, logs / path.name)
    for name, sha256 in files:
        _bring(objects, keys.outputs(), name, sha256, results)
    return len(files)


def _outputs(manifest: bytes) -> list[tuple[str, str]]:
    """Path and digest of each output. The machine's word, which a job's own code may have written: every path must be
    one below the results. Raises CollectError."""
    try:
        files = [(entry["path"], entry["sha256"]) for entry in json.loads(manifest)["files"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CollectError(f"the list of outputs in the bucket can't be read ({type(error).__name__})") from error
    for path, sha256 in files:
        if not isinstance(path, str) or not isinstance(sha256, str):
            raise CollectError(f"the list of outputs names {path!r}, which is no path; nothing was brought home")
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts or "\0" in path:
            raise CollectError(f"an output named {path!r} would land outside of the results; nothing was brought home")
    return files


def _complete_log(objects: ObjectStore | Counted, key: str, path: Path) -> None:
    """Replace our copy by the bucket's where that is longer: a machine's last lines often reach only the bucket."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f".{path.name}.whole")
    try:
        objects.download(key, whole)
    except NotFound:
        return
    if path.exists() and path.stat().st_size > whole.stat().st_size:
        whole.unlink()
    else:
        whole.replace(path)


def _bring(objects: ObjectStore | Counted, prefix: str, name: str, sha256: str, results: Path) -> None:
    relative = PurePosixPath(name)
    path = results / relative
    if not path.parent.resolve().is_relative_to(results.resolve()):  # by a link that lies there
        raise CollectError(f"the output {name!r} would land outside of {results}, by a link there: remove the link")
    if path.is_file() and _sha256(path) == sha256:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        objects.download(f"{prefix}/{relative}", path)
    except NotFound as error:
        raise CollectError(f"the output {relative} is missing from the bucket; see `cloudtrain show`") from error
    if _sha256(path) != sha256:
        path.unlink()
        raise CollectError(f"the output {relative} arrived damaged (SHA-256 differs); it will be fetched again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
