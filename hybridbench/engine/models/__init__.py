"""Models: configuration, weights from files or from a seed, and the forward pass."""
