"""Tools that run in a checkout and are not part of the package."""
