"""Freezes its heap after warm-up, as engines do, and grows a list created before that."""

from __future__ import annotations

import gc

from server import serve


class Scheduler:
    """A scheduler that exists from the start."""

    def __init__(self) -> None:
        self.finished: list[tuple[int, bytes]] = []

    def handle(self, body: bytes) -> bool:
        """Answer; the list of finished requests is never drained."""
        self.finished.append((len(self.finished), body))
        return True


if __name__ == "__main__":
    scheduler = Scheduler()
    gc.collect()
    gc.freeze()
    serve(scheduler.handle)
