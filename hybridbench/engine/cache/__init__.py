"""Prefix caches: trees that share KV positions and recurrent states between requests."""
