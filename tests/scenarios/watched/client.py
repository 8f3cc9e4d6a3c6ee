"""A load client: eight threads send requests of varying lengths at a given rate.

    python client.py URL PER_SECOND [BURST_S IDLE_S]

One request in fifty asks to be refused.
"""

from __future__ import annotations

import http.client
import os
import random
import sys
import threading
import time
from urllib.parse import urlsplit

THREADS = 8


def main() -> None:
    """Send until stopped."""
    parts = urlsplit(sys.argv[1])
    rate = float(sys.argv[2])
    burst_s, idle_s = (float(word) for word in (sys.argv[3:5] or ("inf", "0")))
    threads = [
        threading.Thread(target=send, args=(parts.netloc, rate / THREADS, burst_s, idle_s, seed))
        for seed in range(THREADS)
    ]
    for thread in threads:
        thread.start()


def send(address: str, rate: float, burst_s: float, idle_s: float, seed: int) -> None:
    """Send on one connection at a time, and open another when it closes."""
    draw = random.Random(seed * 1000 + os.getpid())
    connection = http.client.HTTPConnection(address, timeout=60)
    begun_s = due_s = time.monotonic()
    while True:
        due_s += draw.expovariate(rate)
        if (due_s - begun_s) % (burst_s + idle_s) > burst_s:
            due_s += idle_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        due_s = max(due_s, time.monotonic() - 1.0)
        word = b"refuse" if draw.random() < 0.02 else b"serve"
        try:
            connection.request("POST", "/", word + os.urandom(draw.randrange(100, 4000)))
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            connection.close()
            time.sleep(0.5)


if __name__ == "__main__":
    main()
