"""The dead-man switch on booted machines: Debian under systemd-nspawn, the very user data, the very agent."""
