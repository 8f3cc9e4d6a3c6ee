"""Findings, one file per family: the evidence, how it is found, and its words.

A kind of finding is a subclass of ``Basis``, found by the functions in the same file, which
``judge.py`` calls.  Nothing here reads a file, a clock or an option.
"""
