"""Keeps every request."""

from __future__ import annotations

from server import serve


class Request:
    """A body and what was answered."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.tokens = list(body[:16])


kept: list[Request] = []


def handle(body: bytes) -> bool:
    """Answer, and forget to forget."""
    kept.append(Request(body))
    return True


if __name__ == "__main__":
    serve(handle)
