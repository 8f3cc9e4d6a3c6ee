"""Test the bench itself: it must find defects, and report nothing in twins and controls."""
