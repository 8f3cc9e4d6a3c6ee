"""Probes: read a process's memory, and decide when each is due.  Independent of any engine."""
