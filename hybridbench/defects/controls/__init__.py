"""Things that look like a leak and are not: a detector must report none of them."""
