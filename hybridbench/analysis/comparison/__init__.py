"""Versions side by side: speed, leaks, one answer."""
