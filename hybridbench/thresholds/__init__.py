"""User-defined thresholds: parsing, checking, texts and gates.

Any package may use the grammar and the results; the analysis uses the checks, the report the gates.
"""
