"""SSH key pairs, made here; and the commands that let a machine make its own host key and serve with it.

The key that a machine boots with came in its user data, which others can read, so it serves one session alone: over
that the machine is asked for a key of its own (``offer_command``), we record that key, and only then does its sshd
change over (``change_command``). Sources, read 2026-11: sshd(8) (SIGHUP reads the keys again; sessions go on),
ssh-keygen(1), cloud-init's cc_ssh (``ssh_keys`` are written once per instance: no reboot brings the old one back).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An SSH key pair as text. ``repr`` never shows the private half."""

    private_openssh: str
    public: str  # "ssh-ed25519 AAAA… comment"

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r})"


def ed25519_pair(comment: str) -> KeyPair:
    """A new ed25519 pair: the private key in OpenSSH's own format without a passphrase, the public one in one line.

    Raises ValueError for a comment that does not fit on the public key's line.
    """
    if "\n" in comment or "\r" in comment:
        raise ValueError(f"a key's comment is one line, not {comment!r}")
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode("ascii")
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
    return KeyPair(private, f"{public} {comment}".rstrip())


_PUBLIC = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68}")  # 51 bytes: the type's name and 32 of the key

# Made beside its place and moved there, private half first: a public half means that both are whole.
_OFFER = """\
set -eu
umask 077
dir="${CLOUDTRAIN_ROOT:-}/var/lib/cloudtrain"
mkdir -p "$dir"
key="$dir/host-key"
if [ ! -s "$key.pub" ]; then
  rm -f "$key" "$key.new" "$key.new.pub"
  ssh-keygen -q -t ed25519 -N "" -C "" -f "$key.new"
  sync "$key.new" "$key.new.pub" 2>/dev/null || sync
  mv "$key.new" "$key"
  mv "$key.new.pub" "$key.pub"
fi
cat "$key.pub"
"""

# "ssh" on Debian and Ubuntu, "sshd" elsewhere. sshd stops listening for a moment while it starts itself again. Where
# systemd listens for it (Ubuntu from 22.10 on), some versions lose the socket when they read their keys again (Debian
# 12's 9.2p1: deaf, and its unit fails; measured 2026-11), so there systemd starts it anew; nothing else is stopped by
# that (KillMode=process), and who connects meanwhile waits in the socket's queue.
_CHANGE = """\
set -eu
umask 077
key="${CLOUDTRAIN_ROOT:-}/var/lib/cloudtrain/host-key"
host="${CLOUDTRAIN_ROOT:-}/etc/ssh/ssh_host_ed25519_key"
if [ "$(cut -d " " -f 1,2 <"$key.pub")" != "@PUBLIC@" ]; then
  echo "it offered another host key before" >&2
  exit 1
fi
for end in .pub ""; do
  cp "$key$end" "$host$end.new"
  sync "$host$end.new" 2>/dev/null || sync
  mv "$host$end.new" "$host$end"
done
chmod 644 "$host.pub"
restorecon "$host" "$host.pub" 2>/dev/null || :
if systemctl --quiet is-active ssh.socket 2>/dev/null; then
  systemctl restart ssh
else
  systemctl reload ssh 2>/dev/null || systemctl reload sshd
fi
if [ -z "${CLOUDTRAIN_ROOT:-}" ]; then sleep 1; fi
"""


def offer_command() -> str:
    """A shell command for the login user that prints the public half of the machine's own host key, made at the first
    call. Changes nothing of what its sshd serves with."""
    return _as_root(_OFFER)


def change_command(public: str) -> str:
    """A shell command for the login user after which sshd serves with the machine's own key, ``public`` as it was
    offered. It exits with 0 once sshd was told; repeating it is harmless. Sessions that are open go on."""
    return _as_root(_CHANGE.replace("@PUBLIC@", offered(public)))


def offered(output: str) -> str:
    """The public key that a machine's answer to ``offer_command`` names, without a comment. Raises ValueError."""
    match = _PUBLIC.match(output)
    if match is None:
        raise ValueError(f"no ed25519 host key: {output[:80]!r}")
    return match[0]


def _as_root(script: str) -> str:
    run = f"sh -c {shlex.quote(script)}"
    return f'if [ -n "${{CLOUDTRAIN_ROOT:-}}" ] || [ "$(id -u)" -eq 0 ]; then {run}; else sudo -n {run}; fi'
