"""Streaming sessions: what a conversation holds between two turns, and who may close it."""
