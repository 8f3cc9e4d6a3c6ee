"""What can be found, one file for each family: the evidence, how it is found, and what is said.

A kind of finding is a subclass of ``Basis``, found by the functions beside it; ``judge.py`` calls
these.  Nothing here reads a file, a clock or an option.
"""
