"""Streaming sessions: keep a conversation's KV and state from turn to turn."""
