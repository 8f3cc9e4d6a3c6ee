"""A server around an engine in this process, and a client from the standard library."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridbench.engine.engine import Engine
from hybridbench.records import messages as m
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.plan import SoakPlan
from hybridbench.serve.limits import Limits
from hybridbench.serve.run import ServePlan, listen, serve_engine
from hybridbench.targets.wire import ParentWire
from hybridbench.workload.catalog import load_profile
from tests.unit.worker.engines import PATIENCE_S, InProcessWorker, in_process_worker

MODEL = "qwen3-next-tiny"


class ServedWorker:
    """The wire of a worker that runs on a thread of this process."""

    def __init__(self, worker: InProcessWorker) -> None:
        self._worker = worker
        self._wire: ParentWire = worker.wire

    def post(self, message: m.ToWorker) -> None:
        if isinstance(message, m.Shutdown):
            self._worker.leaving = True
        self._wire.post(message)

    def exchange(self, timeout_s: float) -> list[m.FromWorker]:
        return self._wire.exchange(timeout_s)

    def fileno(self) -> int:
        return self._wire.fileno()

    @property
    def has_unsent(self) -> bool:
        return self._wire.has_unsent

    def limit_stderr(self) -> None:
        """Do nothing: it has no stderr of its own."""

    def stop(self, patience_s: float) -> None:
        self._worker.thread.join(patience_s)

    def kill(self) -> None:
        raise AssertionError("it ends in order")


@dataclass
class Reply:
    """A reply of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The events of a stream, except for the last, which only marks its end."""
        *events, done, rest = self.body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


@dataclass
class Server:
    """A running server."""

    engine: Engine
    port: int

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Send a GET, or a POST of ``body``: bytes unchanged, anything else as JSON."""
        connection = self.connect()
        try:
            sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(
                method or ("GET" if body is None else "POST"), path, sent, headers or {}
            )
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Return the numbers of /metrics, by name and labels."""
        lines = self.ask("/metrics").body.decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}


@contextmanager
def served(engine: Engine, limits: Limits | None = None) -> Iterator[Server]:
    """Run a server on a free port; it is stopped as by a SIGTERM."""
    soak = SoakPlan(
        profile=load_profile("smoke"), model=MODEL, store=Path(), duration_s=60.0, seed=0
    )
    plan = ServePlan(soak, listen("127.0.0.1", 0), "127.0.0.1", limits or Limits(), drain_s=5.0)
    interrupts, started = Interrupts(), threading.Event()
    with in_process_worker(engine) as worker:
        ready = _ready(engine)

        def run() -> None:
            asyncio.run(
                serve_engine(plan, ServedWorker(worker), ready, interrupts, lambda _: started.set())
            )

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert started.wait(PATIENCE_S)
            yield Server(engine, plan.listening.getsockname()[1])
        finally:
            interrupts.first = signal.SIGTERM
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def _ready(engine: Engine) -> m.Ready:
    return m.Ready(
        pid=0,
        capabilities=[],
        metrics=[],
        heap_scan="fork",
        engine_files_sha256="",
        engine_files=0,
        model=MODEL,
        model_note="",
        pools={},
        versions={},
        gc={},
        malloc={},
        max_prompt_tokens=engine.config.max_request_len - 1,
        vocab_size=engine.model_config.vocab_size,
        boot_s=0.0,
    )
