"""Facts that several analyses need, read from a record once."""
