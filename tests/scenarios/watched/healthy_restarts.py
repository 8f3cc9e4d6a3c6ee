"""Has a worker that keeps its requests and is restarted after a thousand of them."""

from __future__ import annotations

import multiprocessing as mp
from multiprocessing.connection import Connection
from threading import Lock

from server import serve

lock = Lock()


def work(connection: Connection) -> None:
    """Answer a thousand requests."""
    done = []
    for _ in range(1000):
        done.append(connection.recv_bytes())
        connection.send(True)


class Front:
    """Owns the worker."""

    def __init__(self) -> None:
        self.context = mp.get_context("spawn")
        self.start()

    def start(self) -> None:
        """Start another worker."""
        self.connection, theirs = self.context.Pipe()
        self.worker = self.context.Process(target=work, args=(theirs,), daemon=True)
        self.worker.start()
        theirs.close()

    def handle(self, body: bytes) -> bool:
        """Pass the request to the worker."""
        with lock:
            try:
                self.connection.send_bytes(body)
                return bool(self.connection.recv())
            except (EOFError, OSError):
                self.worker.join()
                self.connection.close()
                self.start()
                return False


if __name__ == "__main__":
    serve(Front().handle)
