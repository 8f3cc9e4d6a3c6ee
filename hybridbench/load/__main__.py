"""``python -m hybridbench.load FD``: the load client; its run is at the other end of socket FD.

It ends when the socket closes, so it ends with its run, however that ends.
"""

from __future__ import annotations

import asyncio
import gc
import select
import selectors
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Final

import msgspec

from hybridbench.load.client import LoadClient
from hybridbench.load.interfaces import Interface, NoAnswerError
from hybridbench.records.load import LoadOrder, LoadReport, LoadStart
from hybridbench.sampling.process import allow_open_files, take_priority
from hybridbench.workload.actions import TimedWorkload
from hybridbench.workload.build import build_traffic
from hybridbench.workload.in_turn import InTurn
from hybridbench.workload.profile import Profile
from hybridbench.workload.trace_replay import TraceOptions

_REPORT_EVERY_S: Final = 1.0
_START: Final = msgspec.json.Decoder(LoadStart)
_ORDER: Final = msgspec.json.Decoder(LoadOrder)
_LINE_MOST: Final = 1 << 24


class PromptSelector(selectors.EpollSelector):
    """Waits exactly as long as requested.

    epoll rounds up to whole milliseconds, so that each request would leave half a millisecond late
    on average.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for at most ``timeout`` seconds."""
        if timeout is not None and timeout > 0:
            select.select((self.fileno(),), (), (), timeout)
            timeout = 0
        return super().select(timeout)


def main(descriptor: int) -> None:
    """Serve the run at ``descriptor`` until it ends."""
    allow_open_files()
    # A server that keeps all processors busy must not delay its clients.
    take_priority()
    with (
        suppress(KeyboardInterrupt),
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(PromptSelector())) as runner,
    ):
        runner.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_LINE_MOST)
    start = _START.decode(await reader.readline())
    profiles = [Profile.from_resolved(one) for one in start.profiles]
    without = {name for profile in profiles for name in profile.options.without}
    interface = Interface(start.api, start.model, stream=start.stream, without=sorted(without))
    workload = _workload(start, profiles)

    def report() -> None:
        _write(writer, client.report())

    client = LoadClient(workload, interface, start.url, start.key, report)
    beside = [
        asyncio.create_task(_report_always(report)),
        asyncio.create_task(client.watch_itself()),
    ]
    try:
        await client.learn_model()
        if start.repeats:
            client.keep_for_repeats(start.seed, exact=start.exact)
        if start.culprits:
            client.keep_culprits()
        # Collecting all imported objects would take 30 ms, in which nothing is sent or read.
        gc.freeze()
        while line := await reader.readline():
            order = _ORDER.decode(line)
            _follow(client, order)
            if order.do == "pause" and isinstance(workload, InTurn):
                workload.next_turn()
            client.orders += 1
            report()
    except NoAnswerError:
        client.failure = "the server lists no model at /v1/models; name one with --model"
        report()
        await reader.read()
    except ConnectionError:
        # The run has ended.
        pass
    finally:
        for task in beside:
            task.cancel()
        await client.close()
        writer.close()


def _follow(client: LoadClient, order: LoadOrder) -> None:
    if order.do == "pause":
        client.pause()
    elif order.do == "repeat":
        client.repeat(order.seconds)
    elif order.do == "search":
        client.search()
    else:
        client.resume()


async def _report_always(report: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(_REPORT_EVERY_S)
        # A client with too many open files cannot read its own memory for a moment.
        with suppress(OSError):
            report()


def _write(writer: asyncio.StreamWriter, report: LoadReport) -> None:
    if not writer.is_closing():
        writer.write(msgspec.json.encode(report) + b"\n")


def _workload(start: LoadStart, profiles: Sequence[Profile]) -> TimedWorkload:
    trace = None
    if start.trace:
        path, scale, speedup, unit = start.trace
        trace = TraceOptions(Path(path), Fraction(scale), speedup, unit)
    return build_traffic(profiles, start.vocab_size, trace, start.seed)


if __name__ == "__main__":
    main(int(sys.argv[1]))
