"""Decide which requests run in the next step, what they hold, and how they release it."""
