"""A job without torch: it counts, saves its count, and stops when asked. Starts at once; run by the tests' machines."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from cloudtrain.trainer import checkpoint
from cloudtrain.trainer.contract import write_atomic

total, hold, every = int(sys.argv[1]), Path(sys.argv[2]), 10  # slowly while ``hold`` is there, then as fast as it goes
folder = Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"])
resume = os.environ.get("CLOUDTRAIN_RESUME")
start = json.loads((Path(resume) / "count.json").read_text()) if resume else 0


def save(step: int) -> int:
    """One checkpoint; returns its step."""
    checkpoint.write(folder, step, {"count.json": json.dumps(step).encode()})
    return step


def report(step: int, saved: int | None, *, done: bool = False) -> None:
    """What a person sees."""
    text = {"step": step, "total_steps": total, "checkpoint_step": saved, "done": done, "start_step": start}
    write_atomic(Path(os.environ["CLOUDTRAIN_PROGRESS"]), json.dumps(text | {"stops_by_file": True}))


saved = start or None
for step in range(start + 1, total + 1):
    time.sleep(0.05 if hold.exists() else 0.001)
    if Path(os.environ["CLOUDTRAIN_NOTICE_FILE"]).exists():
        report(step, save(step))
        sys.exit(0)
    if step % every == 0:
        saved = save(step)
    report(step, saved)
Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], "count.txt").write_text(f"{total}\n")
report(total, save(total), done=True)
