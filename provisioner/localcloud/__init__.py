"""The embedded cloud behind ``--cloud local``."""
