"""Drive the classes of released engines with our traffic, in place of the bundled engine."""
