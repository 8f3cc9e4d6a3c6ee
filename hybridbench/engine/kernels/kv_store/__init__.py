"""Store new keys and values into their slots of a pool."""
