"""AdamW and a cosine schedule, in a form that starts at once.

``torch.optim.AdamW(...)`` imports torch._dynamo in its constructor, which took 2.4 s where ``import torch`` took 2.3 s
(torch 2.13, two CPU cores, 2026-11). On a run that lives for seconds, and each time a machine is replaced, that
doubles the way to the first step. The update is the same (Loshchilov & Hutter, 2019, algorithm 2), and a test holds it
to torch's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


class AdamW:
    """Adam with decoupled weight decay. ``lr`` may be set before each step."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        self.lr = lr
        self._parameters = list(parameters)
        self._betas = betas
        self._eps = eps
        self._weight_decay = weight_decay
        self._steps = 0
        self._means = [torch.zeros_like(each) for each in self._parameters]
        self._squares = [torch.zeros_like(each) for each in self._parameters]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        self._steps += 1
        beta1, beta2 = self._betas
        size = self.lr / (1 - beta1**self._steps)
        scale = math.sqrt(1 - beta2**self._steps)
        for parameter, mean, square in zip(self._parameters, self._means, self._squares, strict=True):
            if parameter.grad is None:
                continue
            parameter.mul_(1 - self.lr * self._weight_decay)
            mean.lerp_(parameter.grad, 1 - beta1)
            square.mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
            parameter.addcdiv_(mean, (square.sqrt() / scale).add_(self._eps), value=-size)

    def state_dict(self) -> dict[str, Any]:
        """The step count and both running averages, in the order of the parameters."""
        return {"steps": self._steps, "means": list(self._means), "squares": list(self._squares)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave. Raises ValueError when it is of other parameters."""
        for mine, saved in ((self._means, state["means"]), (self._squares, state["squares"])):
            if [each.shape for each in mine] != [each.shape for each in saved]:
                raise ValueError("the saved averages have other shapes than the parameters")
            for here, there in zip(mine, saved, strict=True):
                here.copy_(there)
        self._steps = int(state["steps"])


def cosine(step: int, total_steps: int, base: float) -> float:
    """The learning rate of ``step`` (from 0): from ``base`` down to 0 along half a cosine."""
    return base * 0.5 * (1 + math.cos(math.pi * step / total_steps))
