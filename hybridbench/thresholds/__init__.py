"""Thresholds that a user sets: how they are written, checked, worded and gated.

The room has a door on each floor: every room may read the grammar and the results, the analysis
checks, the report gates.
"""
