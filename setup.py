"""Refuses to build where git's links to the top-level folders were lost; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

# An sdist holds folders where the repository holds links: what counts is that each name leads to a folder.
LINKS = [f"src/cloudtrain/{name}" for name in ("pricing", "provisioner", "templates", "trainer")]
LOST = [link for link in LINKS if not Path(__file__).resolve().parent.joinpath(link).is_dir()]

if LOST:
    sys.exit(
        f"cloudtrain: no longer links to the top-level folders: {', '.join(LOST)}; "
        "clone again with `git -c core.symlinks=true clone` (on Windows: in Developer Mode, or use WSL)"
    )

setup()
