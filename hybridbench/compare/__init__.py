"""Versions of the engine side by side: who they are, how they take turns, what is stored of it."""
