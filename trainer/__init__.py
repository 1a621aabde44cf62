"""What runs on the machine. Works alone: no click, no paramiko, nothing of ``provisioner``.

``Session`` makes a plain training script safe to interrupt, in five lines:

    from cloudtrain.trainer import Session
    session = Session(model=model, optimizer=optimizer); session.resume()
    for x, y in session.batches(loader, epochs=10):
        ...                                      # train on the batch as before
        if session.step(loss=loss): break
    session.finish()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Session"]


def __getattr__(name: str) -> Any:
    if name == "Session":
        # The agent and the command line import this package's words, and neither may wait for torch.
        from .session import Session  # noqa: PLC0415

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
