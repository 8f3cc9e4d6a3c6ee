"""Caches the answers to the last four thousand requests."""

from __future__ import annotations

from functools import lru_cache

from server import serve


@lru_cache(maxsize=4096)
def answer(body: bytes) -> list[int]:
    """Return some tokens."""
    return list(body[:32])


def handle(body: bytes) -> bool:
    """Answer from the cache if possible."""
    return bool(answer(body))


if __name__ == "__main__":
    serve(handle)
