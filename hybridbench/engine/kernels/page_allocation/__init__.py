"""Where new tokens go, of pages that an allocator has taken."""
