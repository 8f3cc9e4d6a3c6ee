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
from typing import Any

import psutil

from hybridbench.foundation.errors import ExitCode

PATIENCE_S = 120.0
CANARY = "xylophone-canary"
MODEL = "qwen3-next-nano"


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    port: int
    output: Path

    @property
    def worker(self) -> psutil.Process:
        (worker,) = psutil.Process(self.process.pid).children()
        return worker

    def post(self, path: str, body: bytes) -> bytes:
        """Return the complete answer."""
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
        """Yield an answer that has begun."""
        body = {"prompt": CANARY, "max_tokens": tokens, "stream": True}
        with self.asked("/v1/completions", json.dumps(body).encode()) as response:
            assert response.readline().startswith(b"data: ")
            yield response


@contextmanager
def serving(place: Path, *options: str) -> Iterator[Served]:
    output = place / "output"
    small = ["--profile", "smoke", "--set", f"model={MODEL}", "--ballast", "0", "--port", "0"]
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
    with serving(tmp_path) as served:
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
            f"hybridbench: serving {MODEL} on http://127.0.0.1:{served.port}\n"
        )


def test_a_server_has_the_same_logprobs_in_every_form_and_says_so_when_its_worker_dies(
    tmp_path: Path,
) -> None:
    ahead = ["engine.enable_overlap_schedule=true", "engine.speculative_algorithm=NGRAM"]
    # Repetitive, so that draft tokens are accepted; no request hits another one's prefix.
    prompt, tokens = [7, 8, 9] * 5, 24
    text = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 3}
    own = {"input_ids": prompt, "return_logprob": True, "top_logprobs_num": 3}
    sampling = {"max_new_tokens": tokens, "temperature": 0}
    with serving(tmp_path, *(word for setting in ahead for word in ("--set", setting))) as served:

        def asked(path: str, **fields: object) -> list[Any]:
            body = served.post(path, json.dumps(fields).encode()).removesuffix(b"data: [DONE]\n\n")
            events = body.split(b"\n\n") if fields.get("stream") else [body]
            return [json.loads(event.removeprefix(b"data: ")) for event in events if event]

        (whole,) = asked("/v1/completions", **text, cache_salt="a")
        parts = asked("/v1/completions", **text, cache_salt="b", stream=True)
        (generated,) = asked("/generate", **own, sampling_params=sampling, cache_salt="c")
        assert_death_of_the_worker_is_told(served)

    choice, meta = whole["choices"][0], generated["meta_info"]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == tokens
    assert "".join(logprobs["tokens"]) == choice["text"] == generated["text"]
    for best, chosen in zip(logprobs["top_logprobs"], logprobs["token_logprobs"], strict=True):
        assert len(best) == 3
        assert max(best.values()) == chosen < 0.0
    for name, values in logprobs.items():
        streamed = [part["choices"][0]["logprobs"][name] for part in parts]
        assert [value for part in streamed for value in part] == values
    assert [value for value, *_ in meta["output_token_logprobs"]] == logprobs["token_logprobs"]
    assert [[value for value, *_ in best] for best in meta["output_top_logprobs"]] == [
        list(best.values()) for best in logprobs["top_logprobs"]
    ]


def assert_death_of_the_worker_is_told(served: Served) -> None:
    """Kill the worker under a stream: the client and the terminal are told, and the server ends."""
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
