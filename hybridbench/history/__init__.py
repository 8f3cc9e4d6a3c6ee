"""Stored runs as series: which may be compared, what changed, and which may be deleted."""
