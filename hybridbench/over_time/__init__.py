"""Runs over time: nightly runs and their cells, stored runs as series, and deletion rules."""
