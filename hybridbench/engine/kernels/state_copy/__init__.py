"""Whole states, all layers of them, from slot to slot."""
