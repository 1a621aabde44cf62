"""What runs on the machine. Works alone: no click, no paramiko, nothing of ``provisioner``."""
