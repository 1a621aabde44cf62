"""A stand-in for cloud-init: reads the part of ``#cloud-config`` user data that we use, and refuses all else.

A real cloud-init passes over a key that it does not know, in ssh_keys too; here that fails the launch, so that a typo
shows on the embedded cloud and not as a machine on AWS that nobody can log in to. The meaning of the keys, and their
order bootcmd, write_files, ssh (the network stage), then runcmd (the final one): github.com/canonical/cloud-init,
cloudinit/config/cc_ssh.py and doc/rtd/explanation/boot.rst (read 2026-11-30).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloudtrain.provisioner.errors import UsageError

# EC2 takes 16 KB before base64 (docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html).
MAX_USER_DATA_BYTES = 16 * 1024
SCRIPT_LIMIT_S = 60.0

_SSH_KEYS = {"ed25519_private", "ed25519_public"}
_FILE_KEYS = {"path", "content", "encoding", "permissions", "owner", "append"}


@dataclass(frozen=True)
class WriteFile:
    """One entry of ``write_files``. ``path`` is absolute, as on the machine."""

    path: str
    content: bytes
    mode: int = 0o644
    append: bool = False


@dataclass(frozen=True)
class CloudConfig:
    """What the user data asks for. ``bootcmd`` and ``runcmd`` are shell scripts, a line or more per command."""

    authorized_keys: tuple[str, ...] = ()
    host_key: str | None = None  # a private key in OpenSSH's format; None: the machine makes one
    write_files: tuple[WriteFile, ...] = ()
    bootcmd: str = ""
    runcmd: str = ""


@dataclass(frozen=True)
class HostKey:
    """The ed25519 key of an SSH server."""

    private: str  # OpenSSH's format, as in /etc/ssh/ssh_host_ed25519_key
    public: str  # "ssh-ed25519 AAAA…", without a comment

    @property
    def fingerprint(self) -> str:
        """What ``ssh-keygen -l`` shows: "SHA256:…"."""
        digest = hashlib.sha256(base64.b64decode(self.public.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def parse(user_data: str) -> CloudConfig:
    """The parts of the user data, checked. Raises UsageError for what a machine, or this stand-in, would not take."""
    size = len(user_data.encode())
    if size > MAX_USER_DATA_BYTES:
        raise UsageError(f"user data has {size} bytes: EC2 takes {MAX_USER_DATA_BYTES}")
    if not user_data:
        return CloudConfig()
    if user_data.split("\n", 1)[0].rstrip() != "#cloud-config":
        raise UsageError("user data does not begin with the line #cloud-config: cloud-init would ignore it")
    try:
        raw = yaml.safe_load(user_data)
    except yaml.YAMLError as error:
        raise UsageError(f"user data is no YAML: {' '.join(str(error).split())}") from error
    raw = {} if raw is None else raw
    known = {"ssh_authorized_keys", "ssh_keys", "ssh_deletekeys", "write_files", "bootcmd", "runcmd"}
    _check_keys(raw, known, "user data")
    if not isinstance(raw.get("ssh_deletekeys", True), bool):
        raise UsageError("user data: ssh_deletekeys must be true or false")
    return CloudConfig(
        authorized_keys=_authorized_keys(raw.get("ssh_authorized_keys", [])),
        host_key=_host_key(raw.get("ssh_keys")),
        write_files=tuple(_write_file(entry) for entry in _list(raw.get("write_files", []), "write_files")),
        bootcmd=_script(raw.get("bootcmd", []), "bootcmd"),
        runcmd=_script(raw.get("runcmd", []), "runcmd"),
    )


def load_host_key(private: str | None) -> HostKey:
    """The key pair of a private key; a new pair for None. Raises UsageError for text that sshd would not load."""
    if private is None:
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ).decode()
    else:
        try:
            loaded = serialization.load_ssh_private_key(private.encode(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise UsageError(
                "user data: ssh_keys.ed25519_private is no OpenSSH private key without a password"
            ) from error
        if not isinstance(loaded, Ed25519PrivateKey):
            raise UsageError("user data: ssh_keys.ed25519_private is a key of another type")
        key = loaded
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return HostKey(private, public.decode())


def write_files(config: CloudConfig, rootfs: Path) -> None:
    """Write the files below ``rootfs`` instead of /, with their modes; the owner stays this process's.

    Raises UsageError where a link that an earlier command made would lead out of it.
    """
    for file in config.write_files:
        target = rootfs / file.path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.resolve().is_relative_to(rootfs.resolve()):
            raise UsageError(f"user data: write_files path {file.path} leaves the host's root")
        with target.open("ab" if file.append else "wb") as stream:
            stream.write(file.content)
        target.chmod(file.mode)


def run_script(
    name: str, script: str, *, env: Mapping[str, str], home: Path, console: Path, limit_s: float = SCRIPT_LIMIT_S
) -> None:
    """Run the commands in one /bin/sh, as cloud-init does; what they print is appended to ``console``.

    As on a machine, a script that fails is reported there and the boot goes on; so it does after ``limit_s``.
    """
    if not script:
        return
    with console.open("ab") as output:
        # Into the file, not a pipe: a process that the script leaves behind would hold a pipe open.
        process = subprocess.Popen(  # noqa: S603 - the script is what the machine was launched with
            ["/bin/sh", "-c", script],
            cwd=home,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
            ending = f"failed: exit {code}" if code else ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ending = f"was ended after {limit_s:g} s"
        if ending:
            output.write(f"cloud-init: {name} {ending}\n".encode())


def key_report(key: HostKey, hostname: str) -> str:
    """The host keys as they show on the console. Source: tools/write-ssh-key-fingerprints (read 2026-11-30).

    Some versions of it put a syslog prefix, "<14>Nov 30 09:00:00 ec2: ", before the lines of the second block too.
    """
    return (
        "ec2: #############################################################\n"
        "ec2: -----BEGIN SSH HOST KEY FINGERPRINTS-----\n"
        f"ec2: 256 {key.fingerprint} root@{hostname} (ED25519)\n"
        "ec2: -----END SSH HOST KEY FINGERPRINTS-----\n"
        "ec2: #############################################################\n"
        "-----BEGIN SSH HOST KEY KEYS-----\n"
        f"{key.public} root@{hostname}\n"
        "-----END SSH HOST KEY KEYS-----\n"
    )


def _check_keys(raw: object, known: set[str], where: str) -> None:
    if not isinstance(raw, dict):
        raise UsageError(f"{where} must be a mapping")
    unknown = sorted(str(key) for key in raw if key not in known)
    if unknown:
        raise UsageError(
            f"{where}: {', '.join(unknown)} not supported by local hosts, which know {', '.join(sorted(known))}"
        )


def _list(raw: object, where: str) -> list[Any]:
    if not isinstance(raw, list):
        raise UsageError(f"user data: {where} must be a list")
    return raw


def _authorized_keys(raw: object) -> tuple[str, ...]:
    keys = _list(raw, "ssh_authorized_keys")
    for key in keys:
        if not isinstance(key, str) or len(key.split()) < 2 or "\n" in key.strip():
            raise UsageError("user data: each of ssh_authorized_keys must be one line, 'ssh-ed25519 AAAA…'")
    return tuple(key.strip() for key in keys)


def _host_key(raw: object) -> str | None:
    if raw is None:
        return None
    _check_keys(raw, _SSH_KEYS, "user data: ssh_keys")
    assert isinstance(raw, dict)
    private, public = raw.get("ed25519_private"), raw.get("ed25519_public")
    if not isinstance(private, str) or not isinstance(public, str):
        raise UsageError("user data: ssh_keys needs the texts ed25519_private and ed25519_public")
    if not private.endswith("\n"):  # cloud-init writes it as it is, and sshd loads no key file that lacks the newline
        raise UsageError("user data: ssh_keys.ed25519_private must end with a newline (in YAML: '|', not '|-')")
    if load_host_key(private).public.split()[:2] != public.split()[:2]:
        raise UsageError("user data: ssh_keys.ed25519_public is not the public half of ed25519_private")
    return private


def _write_file(raw: object) -> WriteFile:
    _check_keys(raw, _FILE_KEYS, "user data: write_files")
    assert isinstance(raw, dict)
    path, content, encoding = raw.get("path"), raw.get("content", ""), raw.get("encoding", "text/plain")
    if not isinstance(path, str) or not path.startswith("/") or ".." in Path(path).parts or path.endswith("/"):
        raise UsageError(f"user data: write_files path {path!r} must be an absolute file path without '..'")
    if not isinstance(content, str):
        raise UsageError(f"user data: the content of {path} must be text")
    data = content.encode()
    if encoding in ("b64", "base64"):
        try:
            data = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise UsageError(f"user data: the content of {path} is no base64") from error
    elif encoding != "text/plain":
        raise UsageError(f"user data: encoding {encoding!r} of {path} not supported: text/plain or b64")
    append = raw.get("append", False)
    if not isinstance(append, bool):
        raise UsageError(f"user data: append of {path} must be true or false")
    return WriteFile(path, data, _mode(raw.get("permissions", "0644"), path), append)


def _mode(raw: object, path: str) -> int:
    try:
        # As cloud-init: YAML has read an unquoted 0644 as octal already; text is octal.
        mode = raw if isinstance(raw, int) else int(str(raw), 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777:
        raise UsageError(f"user data: permissions {raw!r} of {path} must be octal, like '0644'")
    return mode


def _script(raw: object, where: str) -> str:
    """The commands as lines of shell: a text as it stands, a list of words quoted."""
    lines = []
    for command in _list(raw, where):
        if isinstance(command, str):
            lines.append(command)
        elif isinstance(command, list) and command and all(isinstance(word, str | int) for word in command):
            lines.append(shlex.join(str(word) for word in command))
        else:
            raise UsageError(f"user data: each {where} must be a text or a list of words, not {command!r}")
    return "".join(f"{line}\n" for line in lines)
