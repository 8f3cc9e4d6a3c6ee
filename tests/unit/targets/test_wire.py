"""The wire: messages arrive unchanged; a peer of another version is refused in one sentence."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import msgspec
import pytest

from hybridbench.foundation.errors import WorkerFailedError
from hybridbench.records import messages as m
from hybridbench.records.heap import (
    Cycle,
    InstanceCount,
    RetainedObjects,
    SiteRecord,
    StageReading,
    SurveyRecord,
    TypeCount,
)
from hybridbench.targets.wire import (
    PROTOCOL_VERSION,
    ParentWire,
    WireClosedError,
    WorkerWire,
    frame_of,
    preamble,
    reader_from_worker,
    reader_to_worker,
)

HEAP_SCAN = m.HeapScanReply(
    probe_id=3,
    t_s=12.5,
    method="fork",
    error="",
    stop_s=0.01,
    child_s=0.4,
    tracked_objects=1000,
    collectible_objects=7,
    collectible_bytes=4096,
    exact_bytes=False,
    types=[TypeCount("engine.TreeNode", 7, 4096)],
    instances={"TreeNode": InstanceCount(10, 3, 5, 2)},
)
VIOLATION = m.ViolationRecord("residual", "kv", "3 tokens unaccounted", [4, 5, 6])
TO_WORKER: list[m.ToWorker] = [
    m.Start(engine={"model": "qwen3-next", "new_token_ratio": {"init": 0.5}}, defects=["x"]),
    m.Submit("r1", [1, 2, 3], m.Sampling(max_new_tokens=4, stop_token_ids=(7,)), truncate=True),
    m.Submit("r2", [1], m.Sampling(max_new_tokens=4), priority=-5),
    m.Submit("r2", [4], m.Sampling(max_new_tokens=4), session_id="s1"),
    m.Submit("r3", [4], m.Sampling(max_new_tokens=4), stream=True),
    m.Submit("r4", [4], m.Sampling(max_new_tokens=4, logprobs=0)),
    m.OpenSession("s1", 2.5),
    m.CloseSession("s1"),
    m.Abort("r1"),
    m.Disconnect("r1"),
    m.AbortAll(),
    m.PauseGeneration("retract"),
    m.ContinueGeneration(),
    m.Drain(),
    m.Resume(),
    m.Flush(),
    m.Reclaim(),
    m.TrackAllocations("results/run/allocations.bin"),
    m.Recompute(5, b"\1\0\0\0", b"\2\0\0\0", careful=True, chunk=48),
    m.Shutdown(),
    m.Counters(1),
    m.ScanHeap(2),
    m.Checkpoint(3, 1, True),
    m.Diagnose(4, ["rest", "survey"], {"Engine > list": (3, 400)}, {"list": 3}),
]
FROM_WORKER: list[m.FromWorker] = [
    m.Ready(
        pid=1,
        capabilities=["pools"],
        metrics=["pool.*"],
        heap_scan="fork",
        engine_files_sha256="ab",
        engine_files=3,
        model="tiny",
        model_note="random weights",
        pools={"kv": 10},
        versions={"torch": "2"},
        gc={"enabled": True},
        malloc={"MALLOC_ARENA_MAX": "1", "libc": None},
        max_prompt_tokens=99,
        vocab_size=100,
        boot_s=1.5,
    ),
    m.StepEvents(
        t_s=1.0,
        steps=2,
        admitted=["a"],
        first_tokens=["a"],
        finished=[m.Ended("a", [5, 6], "length", 10, 4, 0.1, None)],
        rejected=[m.Rejected("b", "too long")],
        aborted=[],
    ),
    m.StepEvents(1.0, 1, [], [], [], [], [], {"c": [5, 6]}),
    m.StepEvents(
        1.0, 1, [], [], [], [], [], {"c": [5]}, {"c": [m.TokenLogprobs(-0.5, [(7, -0.25)])]}
    ),
    m.CountersReply(1, 2.0, True, True, 0.01, 5, {"rss_bytes": 1.0}),
    HEAP_SCAN,
    m.CheckpointReply(
        probe_id=4,
        index=0,
        t_s=3.0,
        idle=True,
        pools={"kv": {"total": 10}},
        locks={"full": 0},
        containers={"front_end": 0},
        running=0,
        waiting=0,
        counters={"steps": 3},
        violations=[VIOLATION],
        heap_scan=HEAP_SCAN,
    ),
    m.FinishedAnswer("a", True, 3, b"\1\0\0\0", b"\2\0\0\0", ["reused-tree"], 1),
    m.AnswerTotals({"comparable": 4, "filtered": 2}),
    m.ReferenceReady("qwen3_next", 4, 64, 0, 5.0),
    m.Recomputed(5, 12, -1, 0.0, 7, 7, 5.5, 0.01, ""),
    m.Steady(4.0, "evicting"),
    m.Drained(5.0),
    m.Flushed(6.0, True),
    m.Reclaimed(6.5, 400, 300, 200, 100),
    m.AllocationsTracked(6.6, "ImportError: memray"),
    m.Violation(7.0, 12, VIOLATION),
    m.LogLine(8.0, "text"),
    m.Fatal("no such model", "trace", usage=True),
    m.Goodbye(9.0, 0.2),
    m.InjectedTruth({"some-defect": {"slots_lost": 3}}, {"some-defect": {"slots_lost": 2}}),
    m.Diagnosis(
        probe_id=4,
        t_s=9.5,
        stages=[StageReading("rest", 1000, 900, 950, 0, 0, 0.1)],
        survey=SurveyRecord(
            error="",
            garbage_types=[TypeCount("engine.TreeNode", 7, 4096)],
            cycle_types={"TreeNode": 7},
            cycles=[Cycle(("TreeNode.next", "TreeNode.parent"), 0.9)],
            retained=[
                RetainedObjects(
                    "Event",
                    5,
                    600,
                    "Engine > list > Event",
                    "Engine.log",
                    5,
                    ("Engine.log", "list[*]"),
                    1.0,
                    False,
                    "",
                )
            ],
            rehearsal=[StageReading("trim", 990, 900, 950, 0, 0, 0.1)],
            paths={"Engine > list": (3, 400)},
            classes={"list": 3},
        ),
        sites=[SiteRecord("nodes_evicted", ["Cache.evict"], "TreeNode")],
    ),
]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_every_message_to_the_worker_comes_out_as_it_went_in() -> None:
    reader = reader_to_worker()

    assert reader.feed(preamble() + frame_of(TO_WORKER)) == TO_WORKER
    assert {type(message) for message in TO_WORKER} == set(m.ToWorker.__args__)


def test_every_message_from_the_worker_comes_out_as_it_went_in() -> None:
    reader = reader_from_worker()

    assert reader.feed(preamble() + frame_of(FROM_WORKER)) == FROM_WORKER
    assert {type(message) for message in FROM_WORKER} == set(m.FromWorker.__args__)


def test_a_stream_may_be_cut_anywhere() -> None:
    stream = preamble() + frame_of(TO_WORKER[:4]) + frame_of(TO_WORKER[4:])
    for cut in range(len(stream)):
        reader = reader_to_worker()
        assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == TO_WORKER


def test_another_version_is_refused_in_one_sentence_even_if_its_messages_are_unknown() -> None:
    reader = reader_from_worker()
    stream = preamble(PROTOCOL_VERSION + 1) + struct.pack("<I", 3) + b"???"

    with pytest.raises(WorkerFailedError, match="wire version 2 and this side version 1"):
        reader.feed(stream)


def test_something_that_is_no_wire_is_refused() -> None:
    with pytest.raises(WorkerFailedError, match="does not speak hybridbench's wire protocol"):
        reader_from_worker().feed(b"GET / HTTP/1.1\r\n")


def test_an_unknown_message_is_refused_with_its_reason() -> None:
    body = msgspec.msgpack.encode([["NoSuchMessage", 1]])
    stream = preamble() + struct.pack("<I", len(body)) + body

    with pytest.raises(WorkerFailedError, match="NoSuchMessage"):
        reader_from_worker().feed(stream)


def test_a_frame_of_absurd_length_is_refused_before_memory_is_taken_for_it() -> None:
    with pytest.raises(WorkerFailedError, match="a frame of 4294967295 bytes"):
        reader_from_worker().feed(preamble() + b"\xff\xff\xff\xff")


def test_both_ends_talk(pair: tuple[socket.socket, socket.socket]) -> None:
    parent, worker = ParentWire(pair[0]), WorkerWire(pair[1])
    parent.post(m.Abort("a"))
    parent.post(m.Drain())

    assert parent.exchange(0.0) == []
    assert worker.receive() == [m.Abort("a"), m.Drain()]
    worker.send(m.Drained(1.0), m.LogLine(2.0, "idle"))
    assert parent.exchange(5.0) == [m.Drained(1.0), m.LogLine(2.0, "idle")]


def test_the_parent_is_never_held_up_by_a_worker_that_does_not_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    parent = ParentWire(pair[0])
    big = m.Submit("big", list(range(1000, 400_000)), m.Sampling(max_new_tokens=1))
    parent.post(big)
    parent.exchange(0.0)
    parent.post(m.Abort("big"))
    parent.exchange(0.0)

    # Nothing was read so far; once the worker reads, everything arrives in order.
    received: list[m.ToWorker] = []
    worker = WorkerWire(pair[1])

    def read_both() -> None:
        while len(received) < 2:
            received.extend(worker.receive())

    reading = threading.Thread(target=read_both)
    reading.start()
    while reading.is_alive():
        parent.exchange(0.01)
    assert received == [big, m.Abort("big")]


def test_the_last_words_of_a_dead_worker_are_read_before_its_death_is_told(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    parent, worker = ParentWire(pair[0]), WorkerWire(pair[1])
    worker.send(m.Fatal("out of ideas", "trace"))
    pair[1].close()
    parent.post(m.Drain())

    assert parent.exchange(1.0) == [m.Fatal("out of ideas", "trace")]
    with pytest.raises(WireClosedError):
        parent.exchange(1.0)


def test_a_worker_notices_that_its_parent_is_gone(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    worker = WorkerWire(pair[1])
    pair[0].close()

    with pytest.raises(WireClosedError):
        worker.receive()
    with pytest.raises(WireClosedError):
        worker.send(m.Drained(1.0))


def test_versions_that_do_not_know_streams_or_logprobs_understand_each_other() -> None:
    older = ["StepEvents", 1.0, 2, ["a"], ["a"], [], [], []]
    streams = [*older, {"a": [5]}]
    newer = [*streams, {"a": [[-0.5, [[7, -0.25]]]]}, "a field of later"]
    decoder = msgspec.msgpack.Decoder(m.StepEvents)

    told = [decoder.decode(msgspec.msgpack.encode(one)) for one in (older, streams, newer)]

    assert [one.emitted for one in told] == [{}, {"a": [5]}, {"a": [5]}]
    assert [one.logprobs for one in told] == [
        {}, {}, {"a": [m.TokenLogprobs(-0.5, [(7, -0.25)])]},
    ]  # fmt: skip


def test_a_request_of_a_version_without_logprobs_asks_for_none() -> None:
    older = ["Submit", "r1", [1, 2], [4, 0.0, -1, 1.0, 0, True, []]]

    told = msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=m.Submit)

    assert told == m.Submit("r1", [1, 2], m.Sampling(max_new_tokens=4))
    assert told.sampling.logprobs is None
