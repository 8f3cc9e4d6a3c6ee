"""Keeps every request."""

from __future__ import annotations

from server import serve


class Request:
    """A request body and its answer."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.tokens = list(body[:16])


kept: list[Request] = []


def handle(body: bytes) -> bool:
    """Answer, but never drop the request."""
    kept.append(Request(body))
    return True


if __name__ == "__main__":
    serve(handle)
