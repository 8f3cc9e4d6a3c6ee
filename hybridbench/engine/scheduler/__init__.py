"""Which requests run in the next step, what they hold while they do, and how they let go of it."""
