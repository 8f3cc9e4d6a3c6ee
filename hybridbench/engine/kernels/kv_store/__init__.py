"""Keys and values of new tokens into their slots of a pool."""
