"""Shared by the programs in this folder: a server with one thread per request, and counters.

python keeps_requests.py PORT
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Handle = Callable[[bytes], bool]


class Counters:
    """Numbers of answered, refused and running requests."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answered = self.refused = self.running = 0

    def page(self) -> str:
        return (
            "# TYPE answered_requests_total counter\n"
            f"answered_requests_total {self.answered}\n"
            "# TYPE refused_requests_total counter\n"
            f"refused_requests_total {self.refused}\n"
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running {self.running}\n"
        )


def serve(handle: Handle) -> None:
    """Serve until stopped; ``handle`` gets a body and returns False to refuse it."""
    counters = Counters()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, counters.page() if self.path == "/metrics" else "{}")

        def do_POST(self) -> None:
            with counters.lock:
                counters.running += 1
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken = handle(body)
            with counters.lock:
                counters.running -= 1
                counters.answered += taken
                counters.refused += not taken
            self._answer(200 if taken else 400, "{}")

        def log_message(self, format: str, *args: object) -> None:
            del format, args

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
