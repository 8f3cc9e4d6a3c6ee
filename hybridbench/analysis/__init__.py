"""Pure statistics: a run's series in, findings and a verdict out.  No torch, no engine, no clock,
no file.
"""
