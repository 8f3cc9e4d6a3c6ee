"""Targets of a soak: the bundled engine, a command, running processes, or a remote server."""
