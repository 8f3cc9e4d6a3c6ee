"""Growth and decay as trends with intervals."""
