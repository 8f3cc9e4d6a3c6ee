"""Runs over time: nightly runs and their cells, stored runs as series, and what may be deleted."""
