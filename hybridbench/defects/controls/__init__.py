"""Healthy behaviour that looks like a leak; a detector must not report it."""
