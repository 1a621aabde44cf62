"""The Python of a local host, as the image that the host stands in for would have it.

The default one is this process's own, with its packages. The others are what people's own images look like, so that a
job can be seen to cope with them, or to be refused by them, without one.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

BASE: str = getattr(sys, "_base_executable", sys.executable)
"""The interpreter below all virtual environments, as the venv module finds it."""

_PYTHON_MODULES = {"torchrun": "torch.distributed.run"}
# An environment made by another tool than venv may hold no pip; the interpreter carries one.
_PIP = """python={python}
"$python" -c "import pip" 2>/dev/null || "$python" -m ensurepip >/dev/null || exit
exec "$python" -m pip "$@"
"""
_NO_TORCH = 'import sys; sys.modules["torch"] = None\n'  # as good as not installed (docs.python.org, import system)
_OLD = (
    "import sys, collections; sys.version_info = "
    'collections.namedtuple("version_info", "major minor micro releaselevel serial")(3, 9, 18, "final", 0)\n'
)
_NEWER = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.14")
_ACTIVATE = """VIRTUAL_ENV={venv}
PATH="$VIRTUAL_ENV/bin:$PATH"
export VIRTUAL_ENV PATH
"""

IMAGES = {
    "ami-00000000000000001": "torch-in-venv",
    "ami-00000000000000002": "old-python",
    "ami-00000000000000003": "no-torch",
}
"""The images of one's own in the embedded account, in every region, and what their Python is like:

- ``torch-in-venv``: torch lies in /opt/pytorch alone, which must be activated, as in AWS's PyTorch images;
- ``old-python``: every Python says that it is 3.9;
- ``no-torch``: a Python without torch.
"""


def make(kind: str, *, home: Path, rootfs: Path) -> None:
    """Make the host's Pythons. ``kind``: "" or a value of ``IMAGES``."""
    venv = home / "venv"
    _make_venv(venv)
    if kind == "torch-in-venv":
        inner = rootfs / "opt" / "pytorch"
        _make_venv(inner)
        (inner / "bin" / "activate").write_text(_ACTIVATE.format(venv=shlex.quote(str(inner))), encoding="utf-8")
    if kind in ("torch-in-venv", "no-torch"):
        _pth(venv, "_no_torch", _NO_TORCH)
        (venv / "bin" / "torchrun").unlink()
    if kind == "old-python":
        _pth(venv, "zz_old", _OLD)  # after all others, which are written for the real one
        for name in _NEWER:  # the machine under the host may have one
            (venv / "bin" / name).unlink(missing_ok=True)
            write_script(venv / "bin" / name, "exit 127\n")


def _pth(venv: Path, name: str, text: str) -> None:
    (folder,) = venv.glob("lib/python*/site-packages")
    (folder / f"{name}.pth").write_text(text, encoding="utf-8")


def _make_venv(venv: Path) -> None:
    """A virtual environment on this process's interpreter that also sees this process's packages.

    What the venv module makes, in a few milliseconds: no more than the parts that site.py reads
    (docs.python.org/3/library/site.html: pyvenv.cfg, and .pth files with their ``import`` lines).
    """
    base = Path(BASE)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(base)
    for name in ("python3", version):
        (venv / "bin" / name).symlink_to("python")
    (venv / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n",
        encoding="utf-8",
    )
    site_packages = venv / "lib" / version / "site-packages"
    site_packages.mkdir(parents=True)
    (venv / "lib64").symlink_to("lib")  # where Fedora's Python looks for compiled packages
    # Not bare paths: addsitedir also reads the parent's own .pth files, which is how an editable install is seen.
    parents = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in parents]
    (site_packages / "_parent.pth").write_text("".join(lines), encoding="utf-8")
    python = venv / "bin" / "python"
    for name in ("pip", "pip3"):
        write_script(venv / "bin" / name, _PIP.format(python=shlex.quote(str(python))))
    for name, module in _PYTHON_MODULES.items():
        write_script(venv / "bin" / name, f'exec {shlex.quote(str(python))} -m {module} "$@"\n')


def write_script(path: Path, body: str) -> None:
    """Write an executable shell script."""
    path.write_text(f"#!/bin/sh\n{body}", encoding="utf-8")
    path.chmod(0o755)
