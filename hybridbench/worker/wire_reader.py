"""The worker's wire reader: a thread that receives messages and answers counters itself.

It keeps answering while the engine loop hangs, and ends the process when the parent has exited,
which nothing else would do.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from hybridbench.foundation.errors import ExitCode
from hybridbench.records.messages import Counters, CountersReply, Shutdown, ToWorker
from hybridbench.targets.wire import WireClosedError, WorkerWire
from hybridbench.worker.metrics import Snapshot, WorkerMetrics

# None only wakes the loop.
Inbox: TypeAlias = "SimpleQueue[list[ToWorker] | None]"

_FRESH_PATIENCE_S = 0.25


class LoopPulse:
    """The reader's view of the loop: plain values, written only by the loop."""

    def __init__(self) -> None:
        self.busy = False
        self.steps = 0
        self.last_step_end_s = time.monotonic()

    @property
    def step_age_s(self) -> float:
        """Return the seconds since the last step ended, while there is work; 0 when idle."""
        return time.monotonic() - self.last_step_end_s if self.busy else 0.0


class WireReader(threading.Thread):
    """A daemon thread that ends with the process."""

    def __init__(
        self,
        wire: WorkerWire,
        inbox: Inbox,
        pulse: LoopPulse,
        snapshot: Snapshot,
        metrics: WorkerMetrics,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        super().__init__(name="wire-reader", daemon=True)
        self._wire = wire
        self._inbox = inbox
        self._pulse = pulse
        self._snapshot = snapshot
        self._metrics = metrics
        self._leave = leave

    def run(self) -> None:
        """Read until the parent has exited."""
        leaving = False
        try:
            while True:
                messages = self._wire.receive()
                traffic: list[ToWorker] = [m for m in messages if not isinstance(m, Counters)]
                leaving = leaving or any(isinstance(m, Shutdown) for m in traffic)
                if traffic:
                    self._inbox.put(traffic)
                for message in messages:
                    if isinstance(message, Counters):
                        self._answer(message)
        except WireClosedError:
            # After a Shutdown the loop exits by itself; otherwise the parent has died, and a hung
            # engine loop would never notice.
            if not leaving:
                self._leave(int(ExitCode.CRASHED))

    def _answer(self, request: Counters) -> None:
        started_s = time.thread_time()
        self._snapshot.want()
        self._inbox.put(None)
        fresh, t_s, values = self._snapshot.get(_FRESH_PATIENCE_S)
        reply = CountersReply(
            probe_id=request.probe_id,
            t_s=t_s if fresh else time.monotonic(),
            fresh=fresh,
            busy=self._pulse.busy,
            step_age_s=self._pulse.step_age_s,
            steps=self._pulse.steps,
            values={**values, **self._metrics.heap()} if fresh else self._metrics.heap(),
            latencies=self._snapshot.take_latencies() if fresh else {},
        )
        self._wire.send(reply)
        # This thread's CPU time is time in which the engine's thread could not hold the GIL.
        self._metrics.handler_s += time.thread_time() - started_s
