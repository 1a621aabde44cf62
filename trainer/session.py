"""A training script's line to cloudtrain: resume, exact batches, progress, saves when due and when asked to stop."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch

from . import checkpoint, contract, random_state
from .batches import Batches, DataMismatch
from .contract import Progress

EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: saved and left on request, to be started again

_LOOK_EVERY_S = 0.05  # between two looks at the notice file
_PUBLISH_EVERY_S = 1.0  # between two writes of the progress file
_MODEL_PART = "model.pt"  # the model alone, so that it can be used without the rest
_TRAINING_PART = "training.pt"

Number = Any  # a float, or a tensor of one element that is only read when it is needed
_Batch = TypeVar("_Batch")


class SessionError(Exception):
    """The session can't do what it was asked to. The message is one line: what, where, what to do."""


class Stateful(Protocol):
    """Anything with torch's way of saving: model, optimizer, scheduler, GradScaler, an average of weights."""

    def state_dict(self) -> Any:
        """Everything to save: numbers, strings, lists, dicts and tensors."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take over what ``state_dict`` gave."""


class Session:
    """Everything that must survive the loss of the machine, and the means to bring it back bit for bit.

    Give it the model, the optimizer, the scheduler and by name whatever else has a ``state_dict`` (``scaler=scaler``).
    ``total_steps`` is worked out from ``batches(loader, epochs=N)`` where it is not given. Random numbers (torch, CUDA,
    Python, NumPy) and the position in the data are saved with them.

    Under cloudtrain the environment says where things are; without it, checkpoints go to ``./checkpoints`` and nothing
    is resumed unless CLOUDTRAIN_RESUME names a checkpoint. SIGTERM asks for a stop; a second one ends the process.
    One process per job: under torchrun with more than one process it raises SessionError.
    """

    def __init__(
        self,
        *,
        model: Stateful,
        optimizer: Stateful,
        scheduler: Stateful | None = None,
        total_steps: int | None = None,
        **more_stateful: Stateful,
    ) -> None:
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise SessionError("Session is for one process, WORLD_SIZE says more: start the script without torchrun")
        named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, **more_stateful}
        self._parts = {name: part for name, part in named.items() if part is not None}
        for name, part in self._parts.items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise TypeError(
                    f"{name}={type(part).__name__}: it has no state_dict and load_state_dict to save it with"
                )
        env = os.environ
        self._directory = Path(env.get(contract.ENV_CHECKPOINT_DIR) or "checkpoints")
        self._keep = int(env.get(contract.ENV_CHECKPOINT_KEEP) or 3)
        self._every_s, self._every_steps = _interval(env.get(contract.ENV_CHECKPOINT_INTERVAL) or "600s")
        self._progress_path = env.get(contract.ENV_PROGRESS)
        self._notice_path = env.get(contract.ENV_NOTICE_FILE)

        self._step = self._start_step = 0
        self._total_steps = total_steps
        self._loss: Number = None
        self._metrics: dict[str, Number] = {}
        self._batches: Batches | None = None
        self._data: dict[str, Any] | None = None  # the position in the data to go on from, as the checkpoint has it
        self._batch_size: int | None = None
        self._own: list[str] = []  # checkpoints that this run wrote or resumed from
        self._saved_step: int | None = None
        self._stopped = False
        self._signalled = False

        now = time.monotonic()
        self._save_at = now + self._every_s
        self._look_at = self._publish_at = 0.0
        self._rate: float | None = None
        self._rate_mark = (now, 0)
        self._catch_sigterm()
        self._publish()

    @property
    def steps(self) -> int:
        """Steps done, those before a resume included."""
        return self._step

    @property
    def epoch(self) -> int:
        """The epoch that the current batch belongs to, from 0."""
        return self._batches.epoch if self._batches else 0

    @property
    def stopped(self) -> bool:
        """Whether the session saved and asked the loop to leave."""
        return self._stopped

    def _say_what_is_there(self) -> None:
        """Run by hand, a script starts over beside the checkpoints of an earlier run: never without a word."""
        if contract.ENV_JOB_ID in os.environ:
            return
        newest, _ = checkpoint.newest(self._directory)
        if newest is not None:
            print(f"checkpoints of an earlier run are here; {contract.ENV_RESUME}={newest} goes on from the newest")

    def resume(self) -> int:
        """Load the checkpoint that CLOUDTRAIN_RESUME names, and return its step; 0 when the variable is not set.

        A named checkpoint that is damaged, missing, or does not fit this script raises SessionError: starting over in
        silence would throw away what was paid for.
        """
        named = os.environ.get(contract.ENV_RESUME)
        if not named:
            self._say_what_is_there()
            return 0
        path = Path(named)
        try:
            manifest = checkpoint.verify(path)
        except checkpoint.CheckpointRejected as error:
            raise SessionError(
                f"can't resume from {path}: {error.reason}; unset CLOUDTRAIN_RESUME to start over"
            ) from None
        if not {_MODEL_PART, _TRAINING_PART} <= manifest.files.keys():
            raise SessionError(
                f"can't resume from {path}: it was not written by a Session; load it in the script itself"
            )
        model, training = _load(path / _MODEL_PART), _load(path / _TRAINING_PART)
        states = {"model": model, **training["parts"]}
        if states.keys() != self._parts.keys():
            raise SessionError(
                f"can't resume from {path}: it holds {_names(states)}, this script has {_names(self._parts)}"
            )
        for name, part in self._parts.items():
            try:
                part.load_state_dict(states[name])
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise SessionError(
                    f"can't resume from {path}: its {name} does not fit this script's: {first_line}"
                ) from error
        random_state.restore(training["random"])
        self._step = self._start_step = self._saved_step = manifest.step
        self._loss = training["loss"]
        self._data = training["data"] and {**training["data"], "now": training["random"]}
        self._own = [path.name]
        self._rate_mark = (time.monotonic(), self._step)
        self._publish()
        _say(f"resumed at step {self._step} from {path}")
        return self._step

    def batches(self, loader: Iterable[_Batch], epochs: int | None = None) -> Iterator[_Batch]:
        """The batches of ``loader``, over ``epochs`` epochs or without end, from where the checkpoint left off.

        To be called once; see ``Batches`` for what is exact. What draws random numbers in the loop (an evaluation with
        a shuffled loader) belongs before ``step()``: a checkpoint is taken inside it.
        """
        if self._batches is not None:
            raise SessionError("session.batches() goes over all epochs itself: call it once, with epochs=N")
        self._batches = Batches(loader, epochs, self._data)
        self._batch_size = getattr(loader, "batch_size", None) or getattr(
            getattr(loader, "batch_sampler", None), "batch_size", None
        )
        if self._total_steps is None and epochs is not None:
            with contextlib.suppress(TypeError):  # a stream has no length
                self._total_steps = epochs * len(cast(Any, loader))
        return self._iterate(self._batches)

    def step(self, loss: Number = None, **metrics: Number) -> bool:
        """Count one training step; True when the loop must leave, everything being saved.

        Call it when the step is complete (after the optimizer's and the scheduler's). ``loss`` and ``metrics`` may be
        tensors: they are read about once a second, so that the GPU is not waited for at each step.
        """
        self._step += 1
        self._loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
        self._metrics = metrics
        now = time.monotonic()
        if now < self._look_at and not self._signalled and self._step % self._every_steps:
            return self._stopped
        self._look_at = now + _LOOK_EVERY_S
        if self._stop_requested():
            return self._stop()
        if now >= self._save_at or self._step % self._every_steps == 0:
            self._save()
            self._publish()
        elif now >= self._publish_at:
            self._publish()
        return False

    def finish(self, **metrics: Number) -> None:
        """Save for the last time and report the run as done, with ``metrics`` and the exact loss of the last step.

        After a stop it reports nothing and leaves with SystemExit(75): the run is to go on elsewhere.
        """
        if self._stopped:
            raise SystemExit(EXIT_STOPPED)
        if self._saved_step != self._step:
            self._save()
        self._metrics = {"loss": self._loss, **metrics}
        self._publish(done=True)

    def _iterate(self, batches: Batches) -> Iterator[Any]:
        try:
            yield from batches
        except DataMismatch as error:
            raise SessionError(str(error)) from None

    def _catch_sigterm(self) -> None:
        owner = os.getpid()

        def note(number: int, _frame: object) -> None:
            if self._signalled or os.getpid() != owner:  # the second one; or a forked child, which must end as usual
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self._signalled = True

        with contextlib.suppress(ValueError):  # not the main thread: the notice file still asks for stops
            signal.signal(signal.SIGTERM, note)

    def _stop_requested(self) -> bool:
        return self._signalled or (self._notice_path is not None and os.path.exists(self._notice_path))  # noqa: PTH110 (fast)

    def _stop(self) -> bool:
        if not self._stopped:
            began = time.monotonic()
            if self._saved_step != self._step:
                self._save()
            self._stopped = True
            self._publish()
            _say(f"asked to stop: step {self._step} saved in {time.monotonic() - began:.2f} s")
        return True

    def _save(self) -> None:
        self._loss = _value(self._loss)
        training = {
            "parts": {name: part.state_dict() for name, part in self._parts.items() if name != "model"},
            "random": random_state.capture(),
            "data": self._batches.state() if self._batches else None,
            "loss": self._loss,
        }
        parts: Mapping[str, checkpoint.Part] = {
            _MODEL_PART: lambda file: torch.save(self._parts["model"].state_dict(), file),
            _TRAINING_PART: lambda file: torch.save(training, file),
        }
        extra = {"torch": str(torch.__version__), "epoch": self.epoch}
        try:
            path = checkpoint.write(self._directory, self._step, parts, extra)
        except OSError as error:
            raise SessionError(
                f"the checkpoint of step {self._step} can't be written to {self._directory}: {error.strerror}; "
                "earlier ones are untouched: give the job a larger disk or keep fewer"
            ) from error
        if self._saved_step is None:
            _refuse_unsafe(path)
        self._saved_step = self._step
        self._own.append(path.name)
        removed = checkpoint.prune(self._directory, self._keep, own=self._own)
        self._own = [name for name in self._own if name not in removed]
        self._save_at = time.monotonic() + self._every_s

    def _publish(self, done: bool = False) -> None:
        now = time.monotonic()
        # The first step of all is reported at once: it tells that the machine works.
        self._publish_at = now + _PUBLISH_EVERY_S if self._step > self._start_step else now
        if self._progress_path is None:
            return
        mark, steps = self._rate_mark
        if self._batch_size and self._step > steps and now - mark >= _PUBLISH_EVERY_S / 2:
            self._rate = (self._step - steps) * self._batch_size / (now - mark)
            self._rate_mark = (now, self._step)
        progress = Progress(
            step=self._step,
            total_steps=self._total_steps,
            loss=_finite(self._loss),
            samples_per_s=self._rate,
            checkpoint_step=self._saved_step,
            done=done,
            stops_by_file=self._notice_path is not None,
            start_step=self._start_step,
            metrics={name: value for name, raw in self._metrics.items() if (value := _finite(raw)) is not None},
        )
        try:
            contract.write_atomic(Path(self._progress_path), contract.to_json(progress))
        except OSError as error:
            # Progress is only shown; a full disk stops the run where it matters, at the next checkpoint.
            _say(f"{self._progress_path} can't be written: {error.strerror}")


def _interval(text: str) -> tuple[float, int]:
    """Seconds and steps between two checkpoints, of which one never comes: ``600s`` or ``500steps``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)s|(\d+)steps", text)
    if not match or float(match[1] or match[2]) <= 0:
        raise SessionError(f"{contract.ENV_CHECKPOINT_INTERVAL}={text}: write it like 600s or 500steps")
    return (float(match[1]), sys.maxsize) if match[1] else (math.inf, int(match[2]))


def _load(path: Path) -> Any:
    """What torch.save wrote, without ever running code from it."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        # torch's own text is several lines of advice to switch the check off.
        what = f"{path.name} can't be loaded safely ({type(error).__name__})"
        raise SessionError(f"can't resume from {path.parent}: {what}") from error


def _refuse_unsafe(path: Path) -> None:
    """Find out at the first save, not at the first resume, that something saved can't be loaded safely."""
    for name in (_MODEL_PART, _TRAINING_PART):
        unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path / name)
        if unsafe:
            shutil.rmtree(path)
            raise SessionError(
                f"a state_dict holds {_names(unsafe)}, which can't be loaded without running code from the file: "
                "keep numbers, strings, lists, dicts and tensors in it"
            )


def _value(number: Number) -> float | None:
    return None if number is None else float(number)


def _finite(number: Number) -> float | None:
    """The number for JSON, which has no NaN."""
    value = _value(number)
    return value if value is not None and math.isfinite(value) else None


def _names(items: Iterable[str]) -> str:
    return ", ".join(sorted(items))


def _say(line: str) -> None:
    print(f"cloudtrain: {line}", file=sys.stderr, flush=True)
