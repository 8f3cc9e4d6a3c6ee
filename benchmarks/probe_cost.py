"""Measure the cost of a probe in a small HTTP server: requests/s and latencies with and without it.

Blocks with and without heap scans alternate, so that a slowdown of the machine affects both.
The server has one thread, and one client sends request after request, like the tokens of a stream.
"""

from __future__ import annotations

import http.client
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from hybridbench.sampling.probe_client import (
    FORK_BYTES_MAX,
    ProbeClient,
    ProbeError,
    probe_environment,
)

SERVER = """
import http.server, sys
objects, resident_mib = int(sys.argv[1]), int(sys.argv[2])
kept = [{"k": [i], "i": i} for i in range(objects // 2)]
ballast = [bytearray(b"x" * (1 << 20)) for _ in range(resident_mib)]
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, wbufsize = "HTTP/1.1", 1 << 16
    def do_GET(self):
        body = b"x" * 64
        kept[hash(self.path) % len(kept)]["i"] += 1
        self.send_response(200); self.send_header("Content-Length", "64"); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@dataclass
class Block:
    """Latencies and duration of one block, in seconds."""

    latencies_s: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.latencies_s) / self.elapsed_s

    @property
    def p99_ms(self) -> float:
        return statistics.quantiles(self.latencies_s, n=100)[98] * 1e3


def measure(objects: int, resident_mib: int, blocks: int, block_s: float) -> str:
    """Return a row for a server with ``objects`` tracked objects and ``resident_mib`` of memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "sockets"
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(objects), str(resident_mib)],
            env=probe_environment(folder, [], {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            return _row(server.pid, port, ProbeClient(folder), blocks, block_s)
        finally:
            server.kill()
            server.wait()


def _row(pid: int, port: int, client: ProbeClient, blocks: int, block_s: float) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    _block(connection, 2.0)
    plain: list[Block] = []
    watched: list[Block] = []
    ways: list[str] = []
    for _ in range(blocks):
        plain.append(_block(connection, block_s))
        watched.append(_watched_block(connection, block_s, client, pid, ways))
    budget = client.budget(pid)
    pause_share, cpu_share = budget.shares()
    way = ", ".join(f"{ways.count(name)} {name}" for name in sorted(set(ways))) or "none"
    return (
        f"{_median(plain, 'rate')} | {_median(watched, 'rate')} | {_median(plain, 'p99')} | "
        f"{_median(watched, 'p99')} | {max(max(b.latencies_s) for b in plain) * 1e3:.0f} | "
        f"{max(max(b.latencies_s) for b in watched) * 1e3:.0f} | "
        f"{budget.longest_pause_s * 1e3:.1f} | {pause_share:.2%} | {cpu_share:.1%} | {way}"
    )


def _watched_block(
    connection: http.client.HTTPConnection,
    block_s: float,
    client: ProbeClient,
    pid: int,
    ways: list[str],
) -> Block:
    """Measure a block with heap scans as often as the budget allows."""
    import threading

    ended = threading.Event()

    def look() -> None:
        while not ended.wait(min(0.1 + client.budget(pid).wait_s(), block_s)):
            if client.budget(pid).wait_s() > 0.0:
                continue
            try:
                ways.append(client.census(pid, whole=False).way)
            except ProbeError as error:
                ways.append(f"failed ({error})")

    watcher = threading.Thread(target=look)
    watcher.start()
    block = _block(connection, block_s)
    ended.set()
    watcher.join()
    return block


def _block(connection: http.client.HTTPConnection, seconds: float) -> Block:
    block = Block()
    begun_s = last_s = time.perf_counter()
    while last_s - begun_s < seconds:
        connection.request("GET", f"/{len(block.latencies_s)}")
        connection.getresponse().read()
        now_s = time.perf_counter()
        block.latencies_s.append(now_s - last_s)
        last_s = now_s
    block.elapsed_s = last_s - begun_s
    return block


def _median(blocks: Sequence[Block], what: str) -> str:
    if what == "rate":
        return f"{statistics.median(block.per_second for block in blocks):.0f}"
    return f"{statistics.median(block.p99_ms for block in blocks):.2f}"


def main(
    objects: Annotated[
        list[float] | None,
        typer.Option(help="Tracked objects of a server; repeatable.  Default: 1e6 and 5e6."),
    ] = None,
    resident_gib: Annotated[
        list[float] | None,
        typer.Option(help="Its GiB besides 1e6 objects; repeatable.  Default: 8."),
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of each kind.")] = 4,
    block_s: Annotated[float, typer.Option(min=1.0, help="Seconds of a block.")] = 10.0,
) -> None:
    """What the probe's heap scans cost a server: requests/s, latencies and pauses."""
    cases = [(int(count), 0) for count in objects or (1e6, 5e6)]
    cases += [(1_000_000, int(gib * 1024)) for gib in resident_gib or (8.0,)]
    print(
        "| objects, MiB | requests/s | watched | p99 ms | watched | longest ms | watched ", end=""
    )
    print("| longest pause ms | pauses | child | looks |")
    for count, mib in cases:
        row = measure(count, mib, blocks, block_s)
        print(f"| {count:,}, {mib:,} | {row} |", flush=True)
    print(f"Forked up to {FORK_BYTES_MAX >> 30} GiB of private memory, in slices above.")
