"""The live report of a run in progress, over HTTP on the loopback interface.

``python -m hybridbench.report.live_server RUN_DIR DESCRIPTOR`` answers on an inherited listening
socket.  It is a separate process at low priority, reads only the files of the run, and judges only
on request, so that the soak never waits for it.  It ends with its parent.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from hybridbench.foundation.errors import HybridbenchError
from hybridbench.foundation.labels import labelled
from hybridbench.rundir.layout import SAMPLES
from hybridbench.rundir.lines import decoded_sample
from hybridbench.rundir.manifest import read_manifest

HOST: Final = "127.0.0.1"
_NICE: Final = 10
_TAIL_BYTES: Final = 1 << 18
_FRESH_S: Final = 10.0
# A long run takes longer to judge: limit this server to a twentieth of a core.
_COST_FACTOR: Final = 20.0
_CLOCK: Final = time.monotonic


@dataclass(frozen=True)
class Answer:
    """The response for one address."""

    kind: str
    text: str


class LiveRun:
    """Pages of one run, regenerated at most every ``_FRESH_S`` seconds and at a bounded cost.

    Of several concurrent requests, one judges, and the others wait for its result.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float] = _CLOCK) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._lock = threading.Lock()
        self._page = self._verdict = ""
        self._stale_at_s = -1.0

    @property
    def refresh_s(self) -> int:
        """Number of seconds after which a browser may reload."""
        return max(int(_FRESH_S), int(self._stale_at_s - self._clock()) + 1)

    def answers(self) -> Mapping[str, Callable[[], Answer]]:
        return {
            "/": lambda: Answer("text/html", self._fresh()[0]),
            "/verdict.json": lambda: Answer("application/json", self._fresh()[1]),
            "/metrics": lambda: Answer("text/plain; version=0.0.4", self._metrics()),
        }

    def _fresh(self) -> tuple[str, str]:
        with self._lock:
            started_s = self._clock()
            if started_s >= self._stale_at_s:
                self._page, self._verdict = _judged(self._run_dir)
                done_s = self._clock()
                self._stale_at_s = done_s + max(_FRESH_S, _COST_FACTOR * (done_s - started_s))
            return self._page, self._verdict

    def _metrics(self) -> str:
        from hybridbench.report.prometheus import render_prometheus

        t_s, values = last_values(self._run_dir / SAMPLES)
        return render_prometheus(read_manifest(self._run_dir), values, t_s)


def last_values(samples: Path) -> tuple[float, dict[str, float]]:
    """Return the time of the last whole sample, and each metric's newest value near the end."""
    with samples.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = file.read().split(b"\n")
    values: dict[str, float] = {}
    last_s = 0.0
    for line in lines:
        sample = decoded_sample(line)
        if sample is not None:
            values.update(sample.m)
            for process in sample.processes:
                own = process.labels
                values.update({labelled(name, own): value for name, value in process.m.items()})
            last_s = sample.t
    return last_s, values


def make_server(run: LiveRun, listening: socket.socket) -> ThreadingHTTPServer:
    """Return a server that takes over the socket ``listening``; call ``serve_forever`` on it."""
    port = listening.getsockname()[1]
    hosts = frozenset({f"{HOST}:{port}", f"localhost:{port}"})
    answers = run.answers()

    class Handler(BaseHTTPRequestHandler):
        server_version = "hybridbench"
        sys_version = ""

        def do_GET(self) -> None:
            # DNS rebinding: a name that resolves to this machine must not let other pages read it.
            if self.headers.get("Host") not in hosts:
                self.send_error(HTTPStatus.FORBIDDEN, "ask for localhost")
                return
            answer = answers.get(urlsplit(self.path).path)
            if answer is None:
                self.send_error(HTTPStatus.NOT_FOUND, "there is /, /verdict.json and /metrics")
                return
            try:
                self._send(HTTPStatus.OK, answer())
            except (HybridbenchError, OSError) as error:
                not_yet = Answer("text/plain", f"Nothing to see yet: {error}\n")
                self._send(HTTPStatus.SERVICE_UNAVAILABLE, not_yet)

        def _send(self, status: HTTPStatus, answer: Answer) -> None:
            body = answer.text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            if urlsplit(self.path).path == "/":
                self.send_header("Refresh", str(run.refresh_s))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Discard the message; nothing reads it."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        parent = os.getppid()

        def service_actions(self) -> None:
            if os.getppid() != self.parent:
                # Not shutdown(), which would wait for this very loop.
                os._exit(0)

    server = Server(listening.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    return server


def _judged(run_dir: Path) -> tuple[str, str]:
    # Imported on the first request: until then this process is small.
    from hybridbench.analysis.judge import judge_so_far
    from hybridbench.records.stored_verdict import verdict_text
    from hybridbench.report.build import build_so_far
    from hybridbench.report.html import render_html
    from hybridbench.rundir.reader import read_run

    record = read_run(run_dir)
    verdict = judge_so_far(record)
    return render_html(build_so_far(record, verdict)), verdict_text(verdict, run_dir.name)


def main(run_dir: Path, descriptor: int) -> int:
    """Serve until the parent has exited."""
    # The engine and its clients have priority.
    os.nice(_NICE)
    make_server(LiveRun(run_dir), socket.socket(fileno=descriptor)).serve_forever(1.0)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
