"""Copies of whole states, all layers of them, from slot to slot."""
