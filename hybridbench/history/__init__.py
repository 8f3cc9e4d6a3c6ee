"""Runs of many nights beside each other: trends, changes, and what may be thrown away."""
