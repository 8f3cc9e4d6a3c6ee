"""Forgets every request but those that it refuses, one in fifty."""

from __future__ import annotations

from server import serve


class Tracker:
    """The requests that are being answered."""

    def __init__(self) -> None:
        self.by_id: dict[int, object] = {}

    def handle(self, body: bytes) -> bool:
        """Answer; the way out of a refusal skips the tracker."""
        request = bytearray(body)
        self.by_id[id(request)] = request
        if body.startswith(b"refuse"):
            return False
        del self.by_id[id(request)]
        return True


if __name__ == "__main__":
    serve(Tracker().handle)
