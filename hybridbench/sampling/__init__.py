"""Probes: what a process says about its memory, and when each is asked.  Knows no engine."""
