"""Targets of a soak: each is one or more processes behind the versioned wire."""
