"""The job file: read, checked, and changed by flags. Pure but for reading the file."""
