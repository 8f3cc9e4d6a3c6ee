"""A run from start to verdict: the soak loop in the parent, the engine worker in the child."""
