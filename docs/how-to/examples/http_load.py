"""A closed-loop client of a server with OpenAI's API, of the standard library alone.

    python http_load.py http://127.0.0.1:8101 --endpoint responses --clients 4 --seconds 600

Each client sends one request after another, every one with a prompt of its own, so that no cache
answers.  SIGTERM and Ctrl-C end it between two requests.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

LETTERS = "abcdefghijklmnop "


def body_of(endpoint: str, prompt: str, tokens: int) -> dict[str, object]:
    """What a request of ``endpoint`` asks for."""
    if endpoint == "responses":
        return {"model": "tiny", "input": prompt, "max_output_tokens": tokens}
    return {"model": "tiny", "prompt": prompt, "max_tokens": tokens}


def client(
    options: argparse.Namespace, seed: int, stop: threading.Event, counts: Counter[str]
) -> None:
    """One client: sends until ``stop``, and counts answers by status and failures by kind."""
    draw, address = random.Random(seed), urlsplit(options.url)
    while not stop.is_set():
        prompt = "".join(draw.choices(LETTERS, k=draw.randint(50, options.most_characters)))
        body = json.dumps(body_of(options.endpoint, prompt, options.tokens))
        # A connection each: some servers close it after their answer.
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        try:
            connection.request(
                "POST", f"/v1/{options.endpoint}", body, {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            answer.read()
            counts[str(answer.status)] += 1
            failed = answer.status != http.client.OK
        except (OSError, http.client.HTTPException) as error:
            counts[type(error).__name__] += 1
            failed = True
        finally:
            connection.close()
        # A server that refuses everything, or is gone, is not asked thousands of times a second.
        stop.wait(1.0 if failed else options.pause)


def main() -> None:
    """Start the clients, wait, and print what they counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--endpoint", choices=("completions", "responses"), default="completions")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two requests")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--most-characters", type=int, default=300)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    options = parser.parse_args()
    stop, counts = threading.Event(), Counter[str]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    threads = [
        threading.Thread(target=client, args=(options, options.seed + index, stop, counts))
        for index in range(options.clients)
    ]
    for thread in threads:
        thread.start()
    stop.wait(options.seconds)
    stop.set()
    for thread in threads:
        thread.join()
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
