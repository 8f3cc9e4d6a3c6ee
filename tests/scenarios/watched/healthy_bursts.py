"""Queues bursts of requests, and drops each when it is answered."""

from __future__ import annotations

import threading
import time
from collections import deque

from server import serve

waiting: deque[bytes] = deque()
one_at_a_time = threading.Lock()


def handle(body: bytes) -> bool:
    """Answer in order."""
    waiting.append(body)
    with one_at_a_time:
        time.sleep(0.01)
        return bool(waiting.popleft())


if __name__ == "__main__":
    serve(handle)
