"""Judge a run: pure functions from its series and events to findings and a verdict.

Nothing here imports torch or an engine, or reads a clock or a file.
"""
