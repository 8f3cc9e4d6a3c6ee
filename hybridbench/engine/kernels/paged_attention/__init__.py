"""Attention over keys and values that are scattered in a pool."""
