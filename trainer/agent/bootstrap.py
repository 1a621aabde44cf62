"""The first thing that runs on the machine, in ``~/cloudtrain``: unpack the workdir, start the agent, leave.

    python3 agent/cloudtrain/trainer/agent/bootstrap.py

Prints one JSON line, ``{"ok": true, "agent": "started" | "running" | "finished"}`` or
``{"ok": false, "error": "..."}``, and exits with 0 or 1. Repeating it is harmless. The work is in ``arrive``: a script
has no package of its own.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path.cwd() / "agent")
    sys.exit(importlib.import_module("cloudtrain.trainer.agent.arrive").main(Path.cwd()))
