"""Experts chosen per token, beside one shared expert."""
