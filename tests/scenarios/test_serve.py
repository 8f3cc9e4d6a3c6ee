"""``hybridbench serve`` as a command: how it starts, what it writes, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from hybridbench.errors import ExitCode

PATIENCE_S = 120.0
CANARY = "xylophone-canary"


@dataclass
class Served:
    """A server that answers."""

    process: subprocess.Popen[str]
    port: int
    output: Path

    @property
    def worker(self) -> psutil.Process:
        (worker,) = psutil.Process(self.process.pid).children()
        return worker

    def post(self, path: str, body: bytes) -> bytes:
        """The answer, to its end."""
        with self.asked(path, body) as response:
            return response.read()

    @contextmanager
    def asked(self, path: str, body: bytes) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with closing(connection):
            connection.request("POST", path, body)
            with connection.getresponse() as response:
                yield response

    @contextmanager
    def stream(self, tokens: int) -> Iterator[http.client.HTTPResponse]:
        """An answer that has begun."""
        body = {"prompt": CANARY, "max_tokens": tokens, "stream": True}
        with self.asked("/v1/completions", json.dumps(body).encode()) as response:
            assert response.readline().startswith(b"data: ")
            yield response


@contextmanager
def serving(place: Path, *options: str) -> Iterator[Served]:
    output = place / "output"
    small = ["--profile", "smoke", "--ballast", "0", "--port", "0"]
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "hybridbench", "serve", *small, *options],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(place)},
            text=True,
        )
    try:
        end_s = time.monotonic() + PATIENCE_S
        while "serving" not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < end_s
            time.sleep(0.05)
        port = int(output.read_text().rpartition(":")[2])
        yield Served(process, port, output)
    finally:
        process.kill()
        process.wait()


def test_a_server_finishes_what_it_has_and_writes_down_no_prompt(tmp_path: Path) -> None:
    with serving(tmp_path, "--defect", "lru-reference-cycle") as served:
        worker = served.worker
        for body in (
            f'{{"prompt": "{CANARY}", "max_tokens": 2}}',
            f'{{"prompt": "{CANARY}", "max_tokens": "{CANARY}"}}',
            f'{{"prompt": "{CANARY}", "max_tokens": 100000}}',
            f'{{"prompt": "{CANARY * 10000}", "max_tokens": 2}}',
            f'{{"prompt": "{CANARY}", "model": "{CANARY}"}}',
            f'{{"{CANARY}',
        ):
            assert CANARY.encode() not in served.post("/v1/completions", body.encode())
        served.post(f"/{CANARY}", b"")
        with served.stream(100):
            pass  # its client leaves
        with served.stream(100) as running:
            served.process.send_signal(signal.SIGTERM)
            rest = running.read()

        assert rest.endswith(b"data: [DONE]\n\n")
        assert served.process.wait(PATIENCE_S) == 0
        assert not worker.is_running()
        kept = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert kept == [served.output]
        assert served.output.read_text() == (
            f"hybridbench: serving qwen3-next-tiny on http://127.0.0.1:{served.port}\n"
        )


def test_a_server_whose_worker_dies_says_so_and_ends(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        with served.stream(150) as running:
            served.worker.kill()
            rest = running.read()

        assert served.process.wait(PATIENCE_S) == ExitCode.CRASHED
        *_, error, done, end = rest.lstrip().split(b"\n\n")
        sentence = "the engine's process has ended"
        assert json.loads(error.removeprefix(b"data: "))["error"]["message"] == f"{sentence}."
        assert (done, end) == (b"data: [DONE]", b"")
        _, line = served.output.read_text().splitlines()
        assert line == f"hybridbench: {sentence} (signal 9); the server has stopped."
