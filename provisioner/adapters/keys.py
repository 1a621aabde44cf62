"""SSH key pairs, made here and nowhere else."""

from __future__ import annotations

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
