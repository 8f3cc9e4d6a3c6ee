"""Sentences for people, made from what the analysis found: pure functions of records."""
