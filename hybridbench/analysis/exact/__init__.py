"""Findings that need no statistics: a count that does not balance is wrong whenever it is seen."""
