"""User-defined thresholds: parsing, checking, texts and gates.

Each layer uses its part: all packages may use the grammar and the results, the analysis checks, the
report gates.
"""
