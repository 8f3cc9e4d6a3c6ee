"""Compare versions: speed, leaks, and one overall answer."""
