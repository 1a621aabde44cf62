"""The shipped trainer: a small network on images that the package carries, exact across any number of machines."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from . import contract, digits
from .model import SimpleCNN
from .optim import AdamW, cosine
from .session import Session


@dataclass(frozen=True)
class Options:
    """What the command line of ``python -m cloudtrain.trainer`` says."""

    epochs: int
    batch_size: int
    lr: float
    seed: int
    workers: int


def train(options: Options) -> None:
    """Train, evaluate, leave ``model.pt`` and ``metrics.json`` among the outputs, and report the run as done.

    Raises SystemExit(75) after a stop request and SessionError when a checkpoint can't be used or written.
    """
    torch.set_num_threads(1)  # a network this small is slower on several threads, and far slower on shared cores
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training, held_out = digits.load()
    model = SimpleCNN().to(device)
    optimizer = AdamW(model.parameters(), lr=options.lr)
    loader = DataLoader(training, batch_size=options.batch_size, shuffle=True, num_workers=options.workers)
    total_steps = options.epochs * len(loader)

    session = Session(model=model, optimizer=optimizer)
    session.resume()
    epoch_began, first_step = time.monotonic(), session.steps
    for images, labels in session.batches(loader, epochs=options.epochs):
        optimizer.lr = cosine(session.steps, total_steps, options.lr)
        loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch
        optimizer.step()
        if session.step(loss=loss):
            break
        if session.steps % len(loader) == 0:
            rate = (session.steps - first_step) * options.batch_size / (time.monotonic() - epoch_began)
            where = f"epoch {session.epoch + 1}/{options.epochs}  step {session.steps}/{total_steps}"
            print(f"{where}  loss {loss.item():.4f}  {rate:.0f} images/s", flush=True)
            epoch_began, first_step = time.monotonic(), session.steps
    metrics = {} if session.stopped else _report(model, held_out, device)
    session.finish(**metrics)


def _report(model: SimpleCNN, held_out: digits.Digits, device: torch.device) -> dict[str, float]:
    """The accuracy on the images held out; the model and that number are written to the outputs."""
    model.eval()
    with torch.no_grad():
        predicted = model(held_out.images.to(device)).argmax(dim=1).cpu()
    metrics = {"accuracy": (predicted == held_out.labels).double().mean().item()}
    print(f"accuracy {metrics['accuracy']:.4f} on {len(held_out)} images held out", flush=True)
    outputs = Path(os.environ.get(contract.ENV_OUTPUT_DIR) or "outputs")
    outputs.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), outputs / "model.pt")
    (outputs / "metrics.json").write_text(json.dumps(metrics) + "\n", encoding="utf-8")
    return metrics
