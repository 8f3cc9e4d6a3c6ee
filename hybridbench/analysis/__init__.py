"""Pure statistics: takes a run's series and returns findings and a verdict.  It imports neither
torch nor an engine and reads neither clock nor file.
"""
