"""Making a mount's data visible at its target: a link, and never in place of anything that was there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional, Tuple

Owner = Optional[Tuple[int, int]]  # uid and gid; None: leave as it is


class PlaceError(Exception):
    """The target is taken. One line."""


def show(at: Path, data: Path, owner: Owner = None) -> None:
    """Make ``at`` a link to ``data``; folders on the way are made, and are ``owner``'s. Repeating it is harmless.

    Raises PlaceError for a target that is something else already, OSError.
    """
    if at.is_symlink():
        there = Path(os.readlink(at))  # noqa: PTH115 - as it is written
        if there == data:
            return
        raise PlaceError(f"{at} is a link to {there} already")
    if at.is_dir():
        try:
            at.rmdir()
        except OSError:
            raise PlaceError(f"{at} is a folder with something in it, or a mounted disk, already") from None
    elif at.exists():
        raise PlaceError(f"{at} is a file already")
    _make_folders(at.parent, owner)
    at.symlink_to(data)


def _make_folders(folder: Path, owner: Owner) -> None:
    if folder.is_dir():
        return
    if folder.exists() or folder.is_symlink():
        raise PlaceError(f"{folder} is no folder")
    _make_folders(folder.parent, owner)
    folder.mkdir(mode=0o755)
    if owner is not None:
        os.chown(folder, *owner)
