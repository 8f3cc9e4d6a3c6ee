"""Test the bench itself: defects must be found, twins and controls must not be accused."""
