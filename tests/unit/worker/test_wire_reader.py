from __future__ import annotations

import socket
from queue import SimpleQueue

from hybridbench.records.messages import Abort, Shutdown, ToWorker
from hybridbench.sampling.gc_monitor import GcMonitor
from hybridbench.targets.wire import ParentWire, WorkerWire
from hybridbench.worker.metrics import Snapshot, WorkerMetrics
from hybridbench.worker.wire_reader import Inbox, LoopPulse, WireReader
from tests.unit.worker.engines import make_engine


def read_until_the_parent_is_gone(*messages: ToWorker) -> tuple[list[int], Inbox]:
    near, far = socket.socketpair()
    monitor = GcMonitor()
    left: list[int] = []
    inbox: Inbox = SimpleQueue()
    parent = ParentWire(near)
    metrics = WorkerMetrics(make_engine(), monitor, None, {})
    with far:
        reader = WireReader(WorkerWire(far), inbox, LoopPulse(), Snapshot(), metrics, left.append)
        for message in messages:
            parent.post(message)
        parent.exchange(0.0)
        parent.close()
        reader.run()
    monitor.close()
    return left, inbox


def test_a_parent_that_dies_takes_the_process_along() -> None:
    left, inbox = read_until_the_parent_is_gone(Abort("a"))

    assert left == [14]
    assert inbox.get_nowait() == [Abort("a")]


def test_a_parent_that_said_shutdown_lets_the_loop_leave_by_itself() -> None:
    left, inbox = read_until_the_parent_is_gone(Shutdown())

    assert left == []
    assert inbox.get_nowait() == [Shutdown()]


def test_latencies_that_came_too_late_for_one_reader_are_part_of_what_the_next_takes() -> None:
    snapshot = Snapshot()
    snapshot.want()
    snapshot.put({}, {"ttft": {3: 1}})
    snapshot.want()
    snapshot.put({}, {"ttft": {3: 1}, "itl": {5: 2}})

    assert snapshot.get(0.0)[0]
    assert snapshot.take_latencies() == {"ttft": {3: 2}, "itl": {5: 2}}
    assert snapshot.take_latencies() == {}


def test_the_age_of_a_step_is_told_only_while_there_is_work() -> None:
    pulse = LoopPulse()
    pulse.last_step_end_s -= 40.0
    assert pulse.step_age_s == 0.0
    pulse.busy = True
    assert pulse.step_age_s >= 40.0
