"""Experts chosen per token, plus one shared expert."""
