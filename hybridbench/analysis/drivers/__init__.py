"""Which event drives each kind of growth, and at what rate per event."""
