"""Engines that others wrote: one file each; ``inside/`` is for the environments of these."""
