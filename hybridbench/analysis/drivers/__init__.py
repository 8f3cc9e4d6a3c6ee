"""Which event explains what grows, and by how much for each."""
