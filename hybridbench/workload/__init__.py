"""Traffic: profiles that describe it, the seeded generator that makes it, and recorded traces.

Everything here runs in the parent process, gets the time as an argument, and uses memory that does
not grow with the length of the run.
"""
