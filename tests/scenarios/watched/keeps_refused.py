"""Keeps the requests that it refuses, one in fifty, and no others."""

from __future__ import annotations

from server import serve


class Tracker:
    """The requests in progress."""

    def __init__(self) -> None:
        self.by_id: dict[int, object] = {}

    def handle(self, body: bytes) -> bool:
        """Answer; a refusal returns without removing the request from the tracker."""
        request = bytearray(body)
        self.by_id[id(request)] = request
        if body.startswith(b"refuse"):
            return False
        del self.by_id[id(request)]
        return True


if __name__ == "__main__":
    serve(Tracker().handle)
