"""Traffic: profiles that describe it, the seeded generator that makes it, recorded traces.

Everything here lives in the parent process, takes the time as an argument and keeps memory that
does not grow with the length of the run.
"""
