"""Mamba2's selective state space: definition, decode step and chunked prefill."""
