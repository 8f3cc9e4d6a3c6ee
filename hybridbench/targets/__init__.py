"""What can be put under soak: each target is a process (or several) behind the versioned wire."""
