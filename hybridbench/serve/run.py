"""Run a server from start to end: worker, socket, signals, and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import uvicorn

from hybridbench.foundation.errors import WorkerFailedError
from hybridbench.records.messages import Ready
from hybridbench.runs.boot import boot_worker
from hybridbench.runs.interrupts import Interrupts, SecondSignalError, handled_interrupts
from hybridbench.runs.loop import WorkerLostError
from hybridbench.runs.plan import SoakPlan
from hybridbench.sampling.process import allow_open_files
from hybridbench.serve.api import Service
from hybridbench.serve.engine_link import EngineLink, Wire
from hybridbench.serve.limits import Limits, is_loopback
from hybridbench.serve.protocol import with_limits
from hybridbench.serve.schema import Model
from hybridbench.targets.bundled import BundledTarget

_LEAVE_PATIENCE_S: Final = 10.0
_BACKLOG: Final = 2048


@dataclass(frozen=True)
class ServePlan:
    """The engine to serve, and the address.

    Args:
        engine: the engine, as the plan of a soak; the soak itself is not run.
        listening: the socket, bound and listening; ``serve`` closes it.
        host: the address as the user gave it.
        drain_s: time for current requests to finish after a signal to end.
    """

    engine: SoakPlan
    listening: socket.socket
    host: str
    limits: Limits = field(default_factory=Limits)
    drain_s: float = 30.0

    @property
    def address(self) -> str:
        """The server's URL for clients on this machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.listening.getsockname()[1]}"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``host``; ``port`` 0 takes any free port.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except (OSError, OverflowError):
        listening.close()
        raise
    return listening


def serve(plan: ServePlan, on_ready: Callable[[Ready], None]) -> None:
    """Serve until a signal; finish current requests before returning.

    ``on_ready`` is called when the server answers requests.

    Raises:
        ConfigError: the engine cannot be built as requested.
        WorkerFailedError: the worker does not start, or has ended.
    """
    with (
        contextlib.closing(plan.listening),
        # An unnamed file, so that nothing is left behind however this process ends.
        tempfile.TemporaryFile() as stderr,
        handled_interrupts() as interrupts,
    ):
        stderr_path = Path(f"/proc/{os.getpid()}/fd/{stderr.fileno()}")
        target = BundledTarget(plan.engine.worker_launch(stderr_path))
        try:
            ready = boot_worker(target, plan.engine, interrupts)
            allow_open_files()
            lost = ""
            if ready is not None:
                serving = serve_engine(plan, target, ready, interrupts, on_ready)
                lost = asyncio.run(_interruptible(serving, interrupts))
            if lost:
                ended = target.stop(_LEAVE_PATIENCE_S)
                how = "it does not end" if ended is None else ended.text
                raise WorkerFailedError(f"{lost.rstrip('.')} ({how}); the server has stopped.")
        except WorkerLostError as error:
            raise WorkerFailedError(f"{error.detail.rstrip('.')}.") from error
        except SecondSignalError:
            # After a second signal, do not wait for current requests.
            return
        finally:
            target.kill()


async def _interruptible(serving: Coroutine[None, None, str], interrupts: Interrupts) -> str:
    """Return the result of ``serving``; empty if a second signal cancels it.

    Signals go to the event loop: an exception from a plain handler would end whichever task runs.
    """
    task = asyncio.create_task(serving)

    def on_signal(number: int) -> None:
        try:
            interrupts.on_signal(number, None)
        except SecondSignalError:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    await asyncio.wait([task])
    return "" if task.cancelled() else task.result()


class ServedEngine(Wire, Protocol):
    """A worker that is ready."""

    def limit_stderr(self) -> None: ...
    def stop(self, patience_s: float) -> object: ...
    def kill(self) -> object: ...


async def serve_engine(
    plan: ServePlan,
    target: ServedEngine,
    ready: Ready,
    interrupts: Interrupts,
    on_ready: Callable[[Ready], None],
) -> str:
    """Serve ``target``, which has reported ``ready``, until ``interrupts`` has a signal.

    Returns:
        Why the engine did not end normally; empty if it did.
    """
    link = EngineLink(target)
    names = tuple(dict.fromkeys((plan.engine.model, ready.model)))
    model = Model(names, ready.vocab_size, ready.max_prompt_tokens + 1)
    service = Service(link, model, plan.limits, is_loopback(plan.host))

    def tick() -> bool:
        target.limit_stderr()
        service.ending = interrupts.first is not None
        return bool(link.lost) or interrupts.first is not None

    await _Server(_uvicorn_config(plan, service), lambda: on_ready(ready), tick).serve(
        sockets=[plan.listening]
    )
    if link.lost:
        return link.lost
    if await link.leave(_LEAVE_PATIENCE_S):
        target.stop(_LEAVE_PATIENCE_S)
        return ""
    target.kill()
    return "the engine did not end in time"


def _uvicorn_config(plan: ServePlan, service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        service.app(),
        loop="asyncio",
        http=with_limits(plan.limits, service.counts.answered),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # other levels log data from clients
        access_log=False,
        # A header must not be able to claim that a request comes from this machine.
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(plan.limits.idle_s),
        timeout_graceful_shutdown=int(plan.drain_s),
    )


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to the caller.

    Args:
        on_started: called when the server answers requests.
        tick: called ten times a second; returns whether to end.
    """

    def __init__(
        self, config: uvicorn.Config, on_started: Callable[[], None], tick: Callable[[], bool]
    ) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._tick = tick

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._tick()
