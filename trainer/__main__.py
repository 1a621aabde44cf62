"""``python -m cloudtrain.trainer``: train the shipped model on the shipped images."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence


def _whole(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} is less than {low}")
        return value

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cloudtrain.trainer",
        description="Train a small network on 1,797 handwritten digits; interrupted and resumed, to the same last bit.",
        epilog="example: python -m cloudtrain.trainer --epochs 30 --seed 7",
    )
    parser.add_argument("--data", choices=["digits"], default="digits", help="the images to train on (%(default)s)")
    parser.add_argument("--epochs", type=_whole(1), default=30, help="times over the data (%(default)s)")
    parser.add_argument("--batch-size", type=_whole(1), default=32, help="images a step (%(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate at the start (%(default)s)")
    parser.add_argument("--seed", type=_whole(0), default=7, help="of weights, order and dropout (%(default)s)")
    parser.add_argument("--workers", type=_whole(0), default=0, help="processes that load data (%(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and return 0; 1 when a checkpoint can't be used or written. Leaves with 75 after a stop request."""
    given = _parser().parse_args(argv)
    # What cuBLAS needs to give the same sums each time; read when CUDA starts (cuBLAS documentation, "Results
    # reproducibility", 2026-11).
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # After the arguments: --help and a typing error must not wait for torch.
    try:
        from .loop import Options, train  # noqa: PLC0415
        from .session import SessionError  # noqa: PLC0415
    except ImportError as error:
        print(f"cloudtrain: the trainer needs PyTorch: pip install 'cloudtrain[train]' ({error})", file=sys.stderr)
        return 1
    try:
        train(Options(given.epochs, given.batch_size, given.lr, given.seed, given.workers))
    except SessionError as error:
        print(f"cloudtrain: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
