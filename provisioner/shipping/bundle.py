"""What travels to a machine: one tar stream holding the agent, its libraries where the image has none, and the job."""

from __future__ import annotations

import functools
import io
import json
import os
import shlex
import tarfile
import threading
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

import cloudtrain
from cloudtrain.provisioner.errors import CloudtrainError
from cloudtrain.provisioner.shipping.snapshot import MANIFEST_NAME, MTIME, TAR_NAME
from cloudtrain.trainer.contract import SECRETS_NAME, AgentConfig, to_json

# What boto3 needs to reach S3 with an instance role: the seven pure-Python distributions, and of botocore's 20 MB of
# service descriptions those of S3 and STS and what every client reads.
DISTRIBUTIONS = ("boto3", "botocore", "s3transfer", "jmespath", "python-dateutil", "urllib3", "six")
BOTOCORE_DATA = ("s3", "sts", "endpoints.json", "partitions.json", "sdk-default-configuration.json", "_retry.json")
BOTO3_DATA = ("s3",)

_ONCE = threading.Lock()  # of jobs that start together one packs, and the others have it

# tar's last words are "Exiting with failure status"; what it met before may lie far above them.
_SAY_DISK_FULL = """df -Pk . | awk 'END { if ($4 < 1024) print "the disk is full: raise resources.disk_size" }' >&2"""


# An image's Python may lie in an environment that SSH doesn't activate, and `python3` may be too old where python3.12
# stands beside it (Amazon Linux 2023). Each candidate judges itself: 97 for too old, 0 and 1 come from bootstrap.
_CHOOSE = r"""found=
for python in {candidates}; do
  command -v "$python" >/dev/null 2>&1 || continue
  said=$("$python" -c {judge})
  code=$?
  case $code in
    0 | 1) printf '%s\n' "$said"; exit $code ;;
    97) found="$found${{found:+, }}${{python##*/}} is $said" ;;
  esac
done
printf '{{"ok": false, "image": true, "error": "%s: %s; %s"}}\n' {error} "${{found:-none was found}}" {advice}
exit 1"""
_CANDIDATES = (
    '${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python"}',
    '${CONDA_PREFIX:+"$CONDA_PREFIX/bin/python"}',
    "python3 python3.12 python3.13 python3.14 python3.11 python3.10 python",
)
_JUDGE = """import sys
if sys.version_info < (3, 10):
    sys.stdout.write("%d.%d" % sys.version_info[:2])
    sys.exit(97)
exec(compile(open("agent/cloudtrain/trainer/agent/bootstrap.py").read(), "bootstrap.py", "exec"))
"""
_NO_PYTHON = "the image has no Python of 3.10 or later, which the agent needs"
_OTHER_IMAGE = "choose another image: without resources.aws.image_id the reviewed one is taken"


def ship_command(venv: str | None) -> str:
    """The shell script that takes the stream of ``bundle`` on stdin and starts the agent. Harmless to repeat.

    The agent runs on the first Python that is new enough: in the image's ``venv``, in one that is active, python3,
    then others by name. Where there is none it prints the JSON line that says so, as ``bootstrap`` would.
    """
    unpack = f"mkdir -p cloudtrain && cd cloudtrain && {{ tar -xf - || {{ {_SAY_DISK_FULL}; exit 1; }}; }} || exit"
    own = f'"${{CLOUDTRAIN_ROOT:-}}"{shlex.quote(f"{venv}/bin/python")}' if venv else ""
    choose = _CHOOSE.format(
        candidates=" ".join((own, *_CANDIDATES)),
        judge=shlex.quote(_JUDGE),
        error=shlex.quote(_NO_PYTHON),
        advice=shlex.quote(_OTHER_IMAGE),
    )
    return f"{unpack}\n{choose}"


def bundle(
    config: AgentConfig, snapshot_dir: Path | None, secrets: Mapping[str, str] | None = None, *, with_deps: bool
) -> BinaryIO:
    """The stream, read once from start to end and closed by the caller; the snapshot is not copied on the way.

    ``snapshot_dir`` holds what ``snapshot.take`` wrote; None for a job without a workdir. ``secrets``: values by name.
    Raises CloudtrainError where the snapshot is missing.
    """
    with _ONCE:
        parts: list[BinaryIO] = [io.BytesIO(_agent_code())]
        if with_deps:
            parts.append(io.BytesIO(_libraries()))
    parts += _member("incoming/agent.json", to_json(config).encode(), mode=0o600)
    if secrets:
        parts += _member(f"incoming/{SECRETS_NAME}", json.dumps(dict(secrets)).encode(), mode=0o600)
    if snapshot_dir is not None:
        try:
            parts += _member(f"incoming/{MANIFEST_NAME}", (snapshot_dir / MANIFEST_NAME).read_bytes())
            parts += _file_member(f"incoming/{TAR_NAME}", (snapshot_dir / TAR_NAME).open("rb"))
        except FileNotFoundError as error:
            raise CloudtrainError(
                f"the workdir snapshot {error.filename} is missing, so job {config.job_id} can't be started again; "
                "end it with `cloudtrain down` and launch anew"
            ) from error
    parts.append(io.BytesIO(bytes(2 * tarfile.BLOCKSIZE)))
    return io.BufferedReader(_Joined(parts), 256 * 1024)


class _Joined(io.RawIOBase):
    """Files, one after the other."""

    def __init__(self, parts: list[BinaryIO]) -> None:
        self._parts = parts
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override] # the stubs want Buffer
        while self._at < len(self._parts):
            data = self._parts[self._at].read(len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
            self._at += 1
        return 0

    def close(self) -> None:
        for part in self._parts:
            part.close()
        super().close()


def _header(name: str, size: int, mode: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, mode, MTIME
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _member(name: str, data: bytes, mode: int = 0o644) -> list[BinaryIO]:
    return [io.BytesIO(_header(name, len(data), mode) + data + bytes(-len(data) % tarfile.BLOCKSIZE))]


def _file_member(name: str, file: BinaryIO) -> list[BinaryIO]:
    size = os.fstat(file.fileno()).st_size
    return [io.BytesIO(_header(name, size, 0o644)), file, io.BytesIO(bytes(-size % tarfile.BLOCKSIZE))]


@functools.cache
def _agent_code() -> bytes:
    """The tar members of our own package, as far as the machine needs it."""
    package = Path(cloudtrain.__file__).parent
    found = {"agent/cloudtrain/__init__.py": package / "__init__.py"}
    found |= {f"agent/cloudtrain/trainer/{name}": path for name, path in _files(package / "trainer")}
    return _members(found)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.resolve().rglob("*")):
        relative = path.relative_to(folder.resolve())
        if path.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in relative.parts):
            yield relative.as_posix(), path


@functools.cache
def _libraries() -> bytes:
    """The tar members of boto3 and what it needs, from the environment that runs us."""
    found: dict[str, Path] = {}
    for name in DISTRIBUTIONS:
        files = metadata.files(name)
        if not files:
            raise CloudtrainError(f"{name} was installed without a list of its files; reinstall it with pip")
        found |= {f"deps/{file}": Path(str(file.locate())) for file in files if _travels(file.parts)}
    return _members(found)


def _travels(parts: tuple[str, ...]) -> bool:
    if parts[0] in ("..", "/") or parts[0].endswith(".dist-info") or "__pycache__" in parts:
        return False
    if parts[:2] == ("botocore", "data"):
        return parts[2].removesuffix(".gz") in BOTOCORE_DATA
    if parts[:2] == ("boto3", "data"):
        return parts[2] in BOTO3_DATA
    return parts[:2] != ("boto3", "examples")


def _members(found: dict[str, Path]) -> bytes:
    return b"".join(part.read() for name in sorted(found) for part in _member(name, found[name].read_bytes()))
