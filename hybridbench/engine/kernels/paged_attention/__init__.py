"""Attention whose keys and values lie scattered in a pool."""
