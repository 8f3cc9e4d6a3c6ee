"""Guessing tokens ahead: what a drafter is, and the drafters there are."""
