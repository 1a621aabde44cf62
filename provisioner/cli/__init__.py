"""The command line: a thin skin; commands are imported when called."""
