"""The run directory: what a soak leaves on disk, readable after a kill at any byte."""
