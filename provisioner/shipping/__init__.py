"""What travels to a machine: the workdir's snapshot, data, the bundle."""
