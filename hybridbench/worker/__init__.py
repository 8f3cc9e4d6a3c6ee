"""The engine's own process: what the parent starts, asks and measures; nobody else imports it."""
