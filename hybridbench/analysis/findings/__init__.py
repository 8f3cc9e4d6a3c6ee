"""Findings, one file per family: the evidence, how it is found, and how it is worded.

A kind of finding is a subclass of ``Basis``.  The functions that find it are in the same file, and
``judge.py`` calls them.  Nothing here reads a file, a clock or an option.
"""
