"""The small convolutional network that the shipped trainer trains."""

from __future__ import annotations

from torch import Tensor, nn


class SimpleCNN(nn.Module):
    """Images ``(n, 1, 8, 8)`` to scores ``(n, 10)``: two convolutions, two linear layers, dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 2 * 2, 128),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Linear(128, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Scores (logits) of the ten digits."""
        scores: Tensor = self.layers(images)
        return scores
