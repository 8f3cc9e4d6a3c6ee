"""Slot ownership (allocators) and slot contents (pools)."""
