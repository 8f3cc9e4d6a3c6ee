"""The bench tried on itself: defects must be found, twins and controls must be left alone."""
