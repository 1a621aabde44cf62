"""Refuses to build where git's links to the top-level folders were lost; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

PACKAGE = Path(__file__).resolve().parent / "src" / "cloudtrain"
# An sdist holds folders where the repository holds links: what counts is that each name leads to a folder.
LOST = [name for name in ("pricing", "provisioner", "templates", "trainer") if not (PACKAGE / name).is_dir()]

if LOST:
    sys.exit(
        f"cloudtrain: src/cloudtrain/{{{','.join(LOST)}}} must be links to the top-level folders and are not; "
        "clone again with `git -c core.symlinks=true clone` (on Windows: in Developer Mode, or use WSL)"
    )

setup()
