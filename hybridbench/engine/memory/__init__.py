"""Who holds which slot (allocators) and what the slots contain (pools)."""
