"""Every shell script of ours: the files, and what the program makes for machines and hosts."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import yaml

from cloudtrain.provisioner.adapters.keys import change_command, ed25519_pair, offer_command
from cloudtrain.provisioner.adapters.userdata import cloud_config, extend_command
from cloudtrain.provisioner.cli.ssh import remote_line
from cloudtrain.provisioner.localcloud import host_sshd
from cloudtrain.provisioner.shipping.bundle import ship_command
from tests.security.tools import ROOT

_INNER = re.compile(r"\bsh -c ('(?:[^']|'\"'\"')*')")  # as shlex.quote writes it
_HEREDOC = re.compile(r"^cat >\"?([^\s\"]+)\"? <<'(\w+)'\n(.*?)^\2$", re.MULTILINE | re.DOTALL)
_SHEBANG = re.compile(r"#!.*\b(?:ba|da)?sh\b")


def scripts() -> dict[str, str]:
    """Text by name. What a script writes or runs with ``sh -c`` is one of its own, too."""
    found = {**_files(), **_made()}
    for name, text in list(found.items()):
        for path, _, body in _HEREDOC.findall(text):
            found[f"{name}:{path.rpartition('/')[2]}"] = body
        for number, quoted in enumerate(_INNER.findall(text)):
            found[f"{name}:inner-{number}"] = shlex.split(quoted)[0]
    return found


def _files() -> dict[str, str]:
    """What git keeps."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {}
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.suffix in (".sh", ".bash") or (path.is_file() and not path.suffix and _begins(path)):
            found[name] = path.read_text(encoding="utf-8")
        elif path.suffix == ".yaml" and name.startswith("templates/"):
            read = yaml.safe_load(path.read_text(encoding="utf-8"))
            found |= {f"{name}:{key}": read[key] for key in ("run", "setup") if isinstance(read, dict) and key in read}
    return found


def _begins(path: Path) -> bool:
    with path.open("rb") as file:
        return _SHEBANG.match(file.read(64).decode(errors="replace")) is not None


def _made() -> dict[str, str]:
    host, client = ed25519_pair("host"), ed25519_pair("client")
    data = cloud_config(
        client_public_key=client.public,
        host_private_key=host.private_openssh,
        host_public_key=host.public,
        boot_deadline_at=4_000_000_000,
        hard_deadline_at=4_000_086_400,
    )
    boot = yaml.safe_load(data)["bootcmd"]
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder, "session.sh")
        host_sshd._write_session(session, {"HOME": "/h", "A B": "it's"}, Path("/h"))
        session_text = session.read_text(encoding="utf-8")
    return {
        **{f"user data:bootcmd-{number}": text for number, text in enumerate(boot)},
        "extend": extend_command(4_000_000_000),
        "host key:offer": offer_command(),
        "host key:change": change_command(" ".join(host.public.split()[:2])),
        "ship": ship_command(None),
        "ship:venv": ship_command("/opt/pytorch"),
        "ssh:shell": remote_line((), "/opt/pytorch"),
        "ssh:command": remote_line(("nvidia-smi", "-L"), None),
        "local host:session": session_text,
    }
