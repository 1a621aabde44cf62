"""cloudtrain: finish a training run on rented GPUs for the least money, without watching over it."""

__version__ = "0.1.0"
