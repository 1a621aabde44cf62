"""What decides, launches, watches, repairs and ends a training run."""
