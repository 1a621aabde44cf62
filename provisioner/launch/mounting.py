"""``file_mounts`` at launch: looked at before the person confirms, uploaded and written down after."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.provisioner.adapters.clients import Clients
from cloudtrain.provisioner.adapters.data_bucket import ContentStore, Halted, list_source
from cloudtrain.provisioner.decide.stale_data import BEGUN
from cloudtrain.provisioner.errors import CloudtrainError, Conflict, UsageError
from cloudtrain.provisioner.names import MOUNTS
from cloudtrain.provisioner.shipping.mounts import LIMIT_FILES, Sized, describe_objects, is_s3, pack
from cloudtrain.provisioner.shipping.tree import Changed, Entry, Tree
from cloudtrain.provisioner.spec import FileMount
from cloudtrain.trainer.contract import Mount

FILES_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Looked:
    """A mount, looked at: its size, and the folder or the manifest that it comes from; neither where the size is not
    known."""

    sized: Sized
    tree: Tree | None = None
    document: dict[str, Any] | None = None


def look(
    mounts: Iterable[FileMount], clients: Callable[[], Clients], region: str, *, leave_out: Iterable[Path], strict: bool
) -> tuple[Looked, ...]:
    """Walk local sources, and list those in buckets with the user's own credentials; sends nothing.

    ``region``: where a bucket is asked for first. ``leave_out``: paths of this computer that never travel. ``strict``:
    raise what keeps a bucket from being listed; else it is the mount's ``trouble``. Raises UsageError, and where strict
    NotFound, AccessError, CloudUnreachable.
    """
    hidden = tuple(leave_out)
    return tuple(
        _in_bucket(mount, clients, region, strict=strict) if is_s3(mount.source) else _here(mount, hidden)
        for mount in mounts
    )


def _here(mount: FileMount, hidden: tuple[Path, ...]) -> Looked:
    path = Path(mount.source).resolve()
    what = f"file_mounts {mount.target}: {path}"
    only = None if path.is_dir() else path.name
    try:
        tree = Tree(path if only is None else path.parent, what=what, leave_out=hidden, only=only)
    except Changed as error:
        raise _changed(what, str(error)) from error
    files = [entry for entry in tree.entries if entry.is_file]
    if only is not None and not files:
        raise UsageError(f"{what}: no such file or folder; correct file_mounts")
    if len(files) > LIMIT_FILES:
        raise UsageError(f"{what}: {len(files):,} files, more than {LIMIT_FILES:,}: pack them into larger ones (tar)")
    size = sum(entry.size for entry in files)
    return Looked(Sized(mount, len(files), size, tuple(sorted(tree.omitted))), tree=tree)


def _in_bucket(mount: FileMount, clients: Callable[[], Clients], region: str, *, strict: bool) -> Looked:
    try:
        where, found = list_source(clients(), mount.source, region)
    except UsageError:
        raise
    except CloudtrainError as error:
        if strict:
            raise
        return Looked(Sized(mount, trouble=str(error)))
    document = describe_objects(mount.source, found, where)
    rows = document["files"]
    sized = Sized(mount, len(rows), sum(row["size"] for row in rows), region=where)
    return Looked(sized, document=document)


def upload(looked: Sequence[Looked], job_id: str, store: ContentStore) -> tuple[Mount, ...]:
    """Send what is not in the bucket yet, then write each manifest; returns what machines are told. Blocks for as long
    as that takes; broken off anywhere, the next upload of the same data goes on there.

    Raises UsageError for a file that changes meanwhile, AccessError, CloudUnreachable, KeyboardInterrupt.
    """
    mounts = []
    if looked:
        store.put_manifest(f"{MOUNTS}{job_id}/{BEGUN}", b"{}")
    for number, item in enumerate(looked):
        document = item.document if item.document is not None else _contents(item, store)
        mount, data = pack(document, item.sized.mount.target, job_id, number)
        store.put_manifest(mount.key, data)
        mounts.append(mount)
    return tuple(mounts)


def _contents(item: Looked, store: ContentStore) -> dict[str, Any]:
    """The manifest of a local source, every file of which is in the bucket then."""
    tree = item.tree
    assert tree is not None
    with ThreadPoolExecutor(FILES_AT_A_TIME) as pool:
        rows = [pool.submit(_row, tree, entry, store) for entry in tree.entries]
        try:
            files = _results(rows)
        except BaseException:
            store.halt.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    single = Path(item.sized.mount.source).resolve() != tree.root
    return {"v": 1, "source": item.sized.mount.source, "single": single, "files": files}


def _results(rows: Sequence[Future[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What all of them returned; raises the error of the one that failed, not that the others were halted for it."""
    found, halted = [], False
    for row in rows:
        try:
            found.append(row.result())
        except Halted:
            halted = True
    assert not halted, "whoever halts the others raises an error of its own"
    return found


def _row(tree: Tree, entry: Entry, store: ContentStore) -> dict[str, Any]:
    if entry.is_folder:
        return {"path": entry.path, "dir": True, "mode": entry.mode}
    if entry.target is not None:
        return {"path": entry.path, "link": entry.target}
    try:
        digest = store.add(functools.partial(tree.opened, entry), entry.size)
    except Halted:
        raise
    except BaseException as error:
        store.halt.set()  # the others need not finish
        if isinstance(error, Changed | Conflict):
            raise _changed(tree.what, repr(entry.path)) from error
        raise
    return {"path": entry.path, "mode": entry.mode, "size": entry.size, "sha256": digest}


def _changed(what: str, path: str) -> UsageError:
    return UsageError(f"{what}: {path} changed while it was read; stop what writes to it, and launch again")
