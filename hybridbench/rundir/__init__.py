"""The run directory: a soak's files on disk, readable after a kill at any byte."""
