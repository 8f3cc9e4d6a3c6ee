"""Copy whole states, across all layers, from slot to slot."""
