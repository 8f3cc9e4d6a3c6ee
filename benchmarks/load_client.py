"""Measure the accuracy of the load client, and its cost per request.

A server sends the first token after 20 ms and further tokens every 10 ms.  It measures the actual
times itself, as sleeps last longer than requested on a busy machine.  The difference between the
client's and the server's times is the client's error.

    python -m benchmarks load-client [--seconds 20] [--rate 40] [--concurrency 8]

With a rival, `vllm bench serve` sends to the same server in blocks that alternate with the
client's, and the requests per second of both are compared.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, cast

import typer

from hybridbench.foundation.clock import SystemClock
from hybridbench.foundation.latency import ITL, TTFT, LatencyHistogram, add_latencies
from hybridbench.records.load import LATE
from hybridbench.runs.http_load import HttpLoad, Traffic, words_of
from hybridbench.workload.catalog import load_profile

FIRST_S, GAP_S = 0.020, 0.010
TOKENS = 16
PAIRS = 3
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def part(event: bytes) -> bytes:
    """One part of a streamed answer."""
    return b"%x\r\n%s\r\n" % (len(event), event)


CHUNK = part(b'data: {"choices": [{"text": " so", "finish_reason": null}]}\n\n')
LAST = (
    part(b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n')
    + b"0\r\n\r\n"
)


class Exchange(asyncio.Protocol):
    """One connection of the server; measures delays where bytes are received and sent."""

    def __init__(self, measured: dict[str, list[float]]) -> None:
        self._measured = measured
        self._unread = b""
        self._answers: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer the request when it is complete."""
        begun_s = time.monotonic()
        self._unread += data
        head, blank, body = self._unread.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        size = int(length[1]) if length else 0
        if not blank or len(body) < size:
            return
        self._unread = body[size:]
        task = asyncio.get_running_loop().create_task(self._answer(head, begun_s))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, head: bytes, begun_s: float) -> None:
        if head.startswith(b"POST"):
            self._transport.write(STREAM)
            last_s = begun_s
            for index in range(TOKENS):
                await asyncio.sleep(GAP_S if index else FIRST_S)
                self._transport.write(CHUNK)
                now_s = time.monotonic()
                self._measured[ITL if index else TTFT].append(now_s - last_s)
                last_s = now_s
            self._transport.write(LAST)
            return
        body = json.dumps({"data": [], **self._measured}).encode()
        if b" /measured " in head:
            for delays in self._measured.values():
                delays.clear()
        self._transport.write(WHOLE % len(body) + body)


async def serve(port: int) -> None:
    """Answer completions on ``port``; /measured reports the delays since it was last read."""
    measured: dict[str, list[float]] = {TTFT: [], ITL: []}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Exchange(measured), "127.0.0.1", port)
    await server.serve_forever()


def traffic(url: str, arrival: str) -> Traffic:
    """Return traffic of chats without aborts."""
    settings = {"arrival": arrival, "aborts": "{}"}
    settings["output"] = f"{{tokens: [{TOKENS}, {TOKENS}]}}"
    profile = load_profile("chat-churn").with_overrides({**settings, "bad_input": "{}"})
    return Traffic(
        url=url,
        api="completions",
        stream=True,
        profiles=(profile.for_servers(),),
        source="chat-churn",
        seed=1,
        vocab_size=words_of("completions", 0),
        model="m",
    )


def drive(url: str, seconds: float, arrival: str) -> tuple[HttpLoad, dict[str, Any], float]:
    """Send requests for ``seconds``, and wait for the last answer.

    Returns:
        The client, its latencies, and the seconds from its first report of a request to the end.
    """
    load = HttpLoad(traffic(url, arrival).start(""), SystemClock())
    latencies: dict[str, dict[int, int]] = {}
    load.start()
    began_s, is_sending = 0.0, True
    while not load.rests:
        if load.failure:
            raise SystemExit(load.failure)
        if not began_s and load.counters().get("events.requests_submitted"):
            began_s = time.monotonic()
        if is_sending and began_s and time.monotonic() > began_s + seconds:
            load.pause()
            is_sending = False
        time.sleep(0.05)
        load.tend()
        add_latencies(latencies, load.take_latencies())
    return load, latencies, time.monotonic() - began_s


def at_a_time(concurrency: int) -> str:
    """Return the arrival of a closed loop."""
    return f"{{process: closed, concurrency: {concurrency}}}"


def row(name: str, client: Mapping[int, int], server: Sequence[float]) -> str:
    """Return a line with the quantiles of both sides and their difference, in ms."""
    histogram = LatencyHistogram()
    histogram.add_counts(client)
    cuts = statistics.quantiles(server, n=100)
    cells = []
    for percent in (50, 99):
        ours = 1e3 * (histogram.quantile_s(percent / 100) or 0.0)
        theirs = 1e3 * cuts[percent - 1]
        cells.append(f"p{percent} {ours:.2f} (server {theirs:.2f}, {ours - theirs:+.2f})")
    return f"{name.upper():5} ms  {'  '.join(cells)}  n {len(server):,}"


def rates(url: str, seconds: float, concurrency: int, rival: Sequence[str]) -> Iterator[str]:
    """Measure requests per second of both clients in alternating blocks; yield a line per pair."""
    ratios = []
    for _ in range(PAIRS):
        load, _, took_s = drive(url, seconds, at_a_time(concurrency))
        ours = load.counters()["events.finishes"] / took_s
        load.stop()
        requests = str(round(ours * seconds))
        said = subprocess.run(
            [*rival, "--num-prompts", requests, "--max-concurrency", str(concurrency)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        theirs = float(re.findall(r"Request throughput.*?([0-9.]+)\s*$", said, re.MULTILINE)[0])
        ratios.append(ours / theirs)
        yield f"requests/s  client {ours:.1f}  vllm bench serve {theirs:.1f}  {ratios[-1]:.3f}"
    yield f"ratio  median {statistics.median(ratios):.3f}"


def bench_serve(url: str, vllm: str, tokenizer: str) -> list[str]:
    """Return the rival's command line, for requests like the client's."""
    return [
        *(vllm, "bench", "serve", "--backend", "openai", "--base-url", url, "--model", tokenizer),
        *("--dataset-name", "random", "--random-input-len", "64", "--ignore-eos"),
        *("--random-output-len", str(TOKENS), "--disable-tqdm"),
    ]


def main(
    seconds: Annotated[float, typer.Option(min=1.0, help="Seconds of traffic.")] = 20.0,
    rate: Annotated[float, typer.Option(min=0.1, help="Poisson arrivals a second.")] = 40.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 8,
    rival: Annotated[
        tuple[str, str],
        typer.Option(
            metavar="VLLM DIR",
            help="Also compare with `vllm bench serve`: the command, and a checkpoint's tokenizer.",
        ),
    ] = ("", ""),
) -> None:
    """The load client of `soak --url`: its error, its lateness, its processor time per request.

    The error is the difference between its latencies and those of a server with known delays.
    """
    port = 8745
    code = f"import asyncio\nfrom benchmarks.load_client import serve\nasyncio.run(serve({port}))"
    command = [sys.executable, "-c", code]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command) as server:
        try:
            time.sleep(2.0)
            for arrival in (f"{{process: poisson, rate: {rate}/s}}", at_a_time(concurrency)):
                load, latencies, took_s = drive(url, seconds, arrival)
                with urllib.request.urlopen(f"{url}/measured") as answer:  # noqa: S310
                    measured = json.load(answer)
                load.stop()
                print(arrival)
                report(load, latencies, measured, took_s)
            if rival[0]:
                for line in rates(url, seconds, concurrency, bench_serve(url, *rival)):
                    print(line)
        finally:
            server.terminate()


def report(
    load: HttpLoad,
    latencies: Mapping[str, Mapping[int, int]],
    measured: Mapping[str, Sequence[float]],
    took_s: float,
) -> None:
    """Print the client's error, lateness and cost."""
    counts = load.counters()
    for name in (TTFT, ITL):
        print(row(name, latencies[name], measured[name]))
    late = LatencyHistogram()
    late.add_counts(latencies[LATE])
    finished = counts["events.finishes"]
    print(f"late  ms  p99 {1e3 * (late.quantile_s(0.99) or 0.0):.2f}")
    print(
        f"requests  {finished:,.0f} in {took_s:.0f} s, {finished / took_s:.1f}/s; "
        f"client {1e3 * load.cpu_s / finished:.2f} ms of processor time each"
    )
