"""The end of an attempt: outputs, the whole log and the last status, durable in the bucket."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..contract import Keys
from .objects import Conflict, Fenced, Objects, ObjectsError

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


def deliver_outputs(
    objects: Objects, keys: Keys, generation: int, folder: Path, *, in_time: Callable[[], bool] = lambda: True
) -> tuple[str, ...]:
    """Upload every file under ``folder``, then the manifest; what earlier attempts brought and we lack is kept in it.

    Stops starting uploads once ``in_time`` says no; returns the names that were left out, for that or because they
    can't be read or point outside. A file that is in the bucket with the same digest is not sent again. Raises
    ObjectsError, Fenced.
    """
    manifest_key = f"{keys.outputs()}.json"
    found = objects.get(manifest_key)
    before = _entries(found[0], generation) if found is not None else {}
    entries = dict(before)
    left_out: list[str] = []
    for name in sorted(_files(folder)):
        path = folder / name
        try:
            name.encode()  # a key is UTF-8; a file name need not be
            if not in_time() or not path.resolve().is_relative_to(folder.resolve()):
                left_out.append(name)
                continue
            state = path.stat()
            entry = {"path": name, "size": state.st_size, "sha256": _sha256(path), "mode": state.st_mode & 0o777}
            if before.get(name, {}).get("sha256") != entry["sha256"]:
                objects.upload_file(path, f"{keys.outputs()}/{name}")
            entries[name] = entry
        except (OSError, UnicodeEncodeError) as error:
            logger.warning("output %r is left out: %s", name, error)
            left_out.append(name)
    if found is None and not entries:
        return tuple(left_out)
    document = {"files": [entries[name] for name in sorted(entries)], "generation": generation}
    data = json.dumps(document, ensure_ascii=False).encode()
    try:
        if found is None:
            objects.put(manifest_key, data, if_none_match=True)
        else:
            objects.put(manifest_key, data, if_match=found[1])
    except Conflict:
        raise ObjectsError(f"{manifest_key} was changed by another agent; it is read again") from None
    return tuple(left_out)


def _entries(data: bytes, generation: int) -> dict[str, dict[str, Any]]:
    try:
        document = json.loads(data)
        if document["generation"] > generation:
            raise Fenced
        return {entry["path"]: entry for entry in document["files"]}
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("outputs.json in the bucket can't be read and is replaced: %r", error)
        return {}


def _files(folder: Path) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if path.is_file():
                yield path.relative_to(folder).as_posix()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
