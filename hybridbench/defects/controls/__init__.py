"""What looks like a leak and is none: a detector must stay silent on every one of these."""
