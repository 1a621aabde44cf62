"""The process that drives live jobs: observe, decide, save, act."""
