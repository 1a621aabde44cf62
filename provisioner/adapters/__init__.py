"""Effects: one adapter for each port in ``provisioner.ports``."""
