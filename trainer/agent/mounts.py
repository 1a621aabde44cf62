"""The data of ``file_mounts``, on the machine's fastest disk before the user's commands start.

<disk>/<number>-<digest>/data      the tree; the target is a link to it
<disk>/<number>-<digest>/partial   files that are not whole yet
<disk>/<number>-<digest>/whole     says that everything in data was verified, in this boot
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import logging
import os
import pwd
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..contract import AgentConfig, Mount, content_key, mount_target_trouble
from .decide_stop import Verdict
from .fetch import STALL_S, Fetch, FetchError
from .host import Host
from .objects import Objects, ObjectsError
from .places import Places
from .placing import Owner, PlaceError, show
from .unpack import Entry, Manifest, UnpackError, check_links, read_entries, remove, set_directory_modes

logger = logging.getLogger(__name__)

RESERVE_BYTES = 256 << 20  # left free for the job's own files
BLOCK_BYTES = 4096  # what a small file takes more than its size
_AGAIN_S = 1.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MIB = 1 << 20

Connect = Callable[[str, str], Objects]  # bucket, region


@dataclass(frozen=True)
class _Source:
    """A manifest, read."""

    tree: Manifest
    name: str  # "s3://…" or the folder on the computer that launched
    single: bool
    bucket: str | None  # the user's own; None: the content is in the job's bucket
    region: str | None
    prefix: str

    def key(self, entry: Entry) -> str:
        return content_key(entry.sha256) if entry.sha256 is not None else self.prefix + entry.path

    def called(self, entry: Entry) -> str:
        return f"s3://{self.bucket}/{self.key(entry)}" if self.bucket is not None else f"{self.name}: {entry.path}"


class Mounter:
    """Owns the thread. The supervisor reads the attributes: ``done``; ``failure``; ``trouble``, the last error while it
    is tried again; ``crash``, a bug."""

    def __init__(
        self, config: AgentConfig, places: Places, host: Host, env: Mapping[str, str], connect: Connect
    ) -> None:
        """``env``: the job's, for its HOME. ``connect``: opens a bucket."""
        self._config = config
        self._places = places
        self._host = host
        self._home = Path(env.get("HOME", "/"))
        self._connect = functools.cache(connect)  # a client takes a good part of a second to make
        self._stop = threading.Event()
        self._fetch: Fetch | None = None
        self._before_bytes = 0
        self._trouble: str | None = None
        self.total_bytes = sum(mount.bytes for mount in config.mounts)
        self.done = not config.mounts
        self.failure: Verdict | None = None
        self.crash: Exception | None = None

    @property
    def moved_bytes(self) -> int:
        """How much lies on this machine."""
        fetch = self._fetch
        return self._before_bytes + (fetch.moved_bytes if fetch is not None else 0)

    @property
    def trouble(self) -> str | None:
        """Why it does not get on, where that is so; one line."""
        fetch = self._fetch
        return self._trouble or (fetch.trouble if fetch is not None else None)

    def start(self) -> None:
        """Begin, where there is anything to bring."""
        if not self.done:
            threading.Thread(target=self._run, name="mounts", daemon=True).start()

    def leave(self) -> None:
        """Bring no more: the job is stopped. What is there stays for an agent that comes after us."""
        self._stop.set()

    def _run(self) -> None:
        target = ""
        try:
            for number, mount in enumerate(self._config.mounts):
                target = mount.target
                self._bring(number, mount)
                if self._stop.is_set():
                    return
            self.done = True
        except FetchError as error:
            self.failure = Verdict("failed", f"file_mounts {target}: {error}", error.fault)
        except ObjectsError as error:
            self.failure = Verdict("failed", f"file_mounts {target}: {error}", "machine")
        except (PlaceError, UnpackError) as error:
            self.failure = Verdict("failed", f"file_mounts {target}: {error}", "job")
        except OSError as error:
            self.failure = Verdict("failed", f"file_mounts {target}: {self._explain(error)}", "machine")
        except Exception as error:  # the supervisor sees ``crash`` and ends the attempt
            logger.exception("the mounts failed")
            self.crash = error

    def _explain(self, error: OSError) -> str:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return "disk full on the machine: raise resources.disk_size"
        return f"{error.strerror or error}: {error.filename}" if error.filename else str(error)

    def _bring(self, number: int, mount: Mount) -> None:
        if (trouble := mount_target_trouble(mount.target)) is not None:
            raise PlaceError(trouble)
        source = self._manifest(mount)
        if source is None:
            return
        folder = self._room(f"{number}-{mount.sha256[:12]}", mount)
        mark = f"{mount.sha256} {_boot_id()}"
        whole = folder / "whole"
        if not (whole.exists() and whole.read_text(encoding="utf-8") == mark):
            self._download(source, folder)
            if self._stop.is_set():
                return
            whole.write_text(mark, encoding="utf-8")
        self._fetch = None
        self._before_bytes += mount.bytes
        data = folder / "data"
        if source.single:
            data /= next(iter(source.tree.entries))
        self._place(mount.target, data)
        logger.info("file_mounts %s: %d files, %d bytes in %s", mount.target, mount.files, mount.bytes, data)

    def _manifest(self, mount: Mount) -> _Source | None:
        """The manifest; None once we are to leave. Raises FetchError, UnpackError."""
        objects: Objects | None = None
        since = time.monotonic()
        while not self._stop.is_set():
            try:
                objects = objects or self._connect(self._config.bucket, self._config.region)
                found = objects.get(mount.key)
                self._trouble = None
                break
            except ObjectsError as error:
                self._trouble = str(error)
                if time.monotonic() - since > STALL_S:
                    raise FetchError(f"its manifest does not come: {error}", fault="machine") from None
                self._stop.wait(_AGAIN_S)
        else:
            return None
        if found is None:
            raise FetchError(f"its manifest {mount.key} is gone from the bucket", fault="job")
        if hashlib.sha256(found[0]).hexdigest() != mount.sha256:
            raise FetchError(f"its manifest {mount.key} is not the one that was launched", fault="job")
        return _read(found[0])

    def _room(self, name: str, mount: Mount) -> Path:
        """The folder on the fastest disk that has room; the one that was begun, where one was. Raises FetchError."""
        disks = [self._places.mounts]
        scratch = self._config.scratch
        if scratch is not None and self._host.real and os.path.ismount(scratch) and os.access(scratch, os.W_OK):
            disks.insert(0, Path(scratch, "cloudtrain"))
        for disk in disks:
            disk.mkdir(parents=True, exist_ok=True)
            if (disk / name).is_dir():
                return disk / name
        needed = mount.bytes + mount.files * BLOCK_BYTES
        free = [shutil.disk_usage(disk).free - RESERVE_BYTES for disk in disks]
        for disk, room in zip(disks, free, strict=True):
            if room >= needed:
                (disk / name).mkdir()
                return disk / name
        raise FetchError(
            f"it takes {_gib(needed)}, and the machine's disk has {_gib(max(0, *free))}: raise resources.disk_size",
            fault="machine",
        )

    def _download(self, source: _Source, folder: Path) -> None:
        """``folder/data``, every file verified; left unfinished where we are to leave."""
        data = folder / "data"
        data.mkdir(exist_ok=True)
        entries = source.tree.entries.values()
        for entry in entries:
            if entry.is_directory:
                (data / entry.path).mkdir(parents=True, exist_ok=True)
                (data / entry.path).chmod(0o700)
        bucket, region = source.bucket or self._config.bucket, source.region or self._config.region
        owner = self._owner()
        self._fetch = Fetch(
            self._connect(bucket, region),
            [entry for entry in entries if not entry.is_directory and entry.link is None],
            data,
            partial=folder / "partial",
            key_of=source.key,
            name_of=source.called,
            source=source.name,
            owner=owner,
            stop=self._stop,
        )
        self._fetch.run()
        if self._stop.is_set():
            return
        for entry in entries:
            if entry.link is not None and not (data / entry.path).is_symlink():
                (data / entry.path).parent.mkdir(parents=True, exist_ok=True)
                (data / entry.path).symlink_to(entry.link)
        check_links(source.tree, data)
        set_directory_modes(source.tree, data)
        if owner is not None:
            for place, names, links in os.walk(data):
                for path in (place, *(os.path.join(place, name) for name in (*names, *links))):  # noqa: PTH118 - many
                    os.chown(path, *owner, follow_symlinks=False)
        remove(folder / "partial")

    def _owner(self) -> Owner:
        """Whom the data belongs to, where that is not us."""
        user = self._config.login_user
        if user is None or not self._host.real or os.geteuid() != 0:
            return None
        entry = pwd.getpwnam(user)
        return entry.pw_uid, entry.pw_gid

    def _place(self, target: str, data: Path) -> None:
        if target.startswith("/"):
            self._host.place(target, data, self._places.rootfs)
        elif target.startswith("~/"):
            show(self._home / target.removeprefix("~/"), data, self._owner())
        else:
            show(self._places.work / target, data, self._owner())


def _read(data: bytes) -> _Source:
    try:
        raw = json.loads(data)
        if raw["v"] != 1:
            raise UnpackError(f"its manifest has version {raw['v']}, this agent reads version 1")
        name = str(raw["source"])
        tree = Manifest("", read_entries(raw["files"], name), where=name)
        bucket, region = raw.get("bucket"), raw.get("region")
        return _Source(tree, name, bool(raw["single"]), bucket, region, str(raw.get("prefix", "")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnpackError(f"its manifest can't be read: {error!r}") from None


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{-(-count // _MIB)} MiB"
