from __future__ import annotations

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.metrics import declared
from hybridbench.records import messages as m
from hybridbench.records.events import Checkpoint, EngineViolation, Note, Phase, event_data
from hybridbench.records.heap import InstanceCount, TypeCount
from hybridbench.runs.recorder import Recorder
from tests.unit.runs.fakes import FakeSink, scan_reply


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(start_s=1000.0)


@pytest.fixture
def sink() -> FakeSink:
    return FakeSink()


@pytest.fixture
def recorder(sink: FakeSink, clock: FakeClock) -> Recorder:
    return Recorder(sink, clock, start_s=1000.0)


def test_times_are_those_of_the_run_and_samples_carry_the_phase(
    recorder: Recorder, sink: FakeSink, clock: FakeClock
) -> None:
    clock.advance(2.0)
    recorder.enter("warmup")
    recorder.sample(1002.5, {"rss_bytes": 5.0})

    assert sink.events == [Phase("warmup", "warmup", t_s=2.0)]
    assert sink.samples == [(2.5, "warmup", {"rss_bytes": 5.0})]


def test_a_scan_that_arrives_after_a_later_sample_has_the_time_of_its_fork(
    recorder: Recorder, sink: FakeSink
) -> None:
    recorder.sample(1005.0, {"rss_bytes": 1.0})
    recorder.heap_scan(scan_reply(1, 1004.0))
    recorder.sample(1006.0, {"rss_bytes": 2.0})

    assert [t_s for t_s, _, _ in sink.samples] == [5.0, 4.0, 6.0]


def test_times_rise_among_samples_and_among_scans(recorder: Recorder, sink: FakeSink) -> None:
    for _ in range(2):
        recorder.sample(1005.0, {"rss_bytes": 1.0})
        recorder.heap_scan(scan_reply(1, 1004.0))

    times = [t_s for t_s, _, _ in sink.samples]
    assert times == pytest.approx([5.0, 4.0, 5.0, 4.0], abs=0.001)
    assert times[2] > times[0]
    assert times[3] > times[1]


def test_latencies_are_stored_with_the_sample_that_ends_their_interval(
    recorder: Recorder, sink: FakeSink
) -> None:
    recorder.sample(1005.0, {"rss_bytes": 1.0}, {"ttft": {301: 2}})

    assert sink.latencies == [(5.0, {"ttft": {301: 2}})]


def test_a_heap_scan_becomes_declared_metrics(recorder: Recorder, sink: FakeSink) -> None:
    reply = scan_reply(
        1,
        1001.0,
        collectible_objects=9,
        collectible_bytes=900,
        instances={"TreeNode": InstanceCount(live=12, expected=5, collectible=4, retained=3)},
    )
    recorder.heap_scan(reply)
    recorder.heap_scan(reply)

    _, _, values = sink.samples[1]
    for name in values:
        declared(name)
    assert values["gc_collectible_bytes"] == 900
    assert values["instances.TreeNode.stray"] == 7
    assert values["instances.TreeNode.collectible"] == 4
    assert values["instances.TreeNode.retained"] == 3
    assert "probe_child_s" not in values, "the worker counts that, all its children together"


def test_a_heap_scan_that_failed_is_a_note_and_no_numbers(
    recorder: Recorder, sink: FakeSink
) -> None:
    recorder.heap_scan(scan_reply(1, 1001.0, error="the child ended with status -11"))

    assert sink.samples == []
    assert [note.text for note in sink.all_events(Note)] == [
        "a heap scan failed: the child ended with status -11"
    ]


def test_a_checkpoint_is_an_event_a_heap_scan_and_what_the_checks_said(
    recorder: Recorder, sink: FakeSink
) -> None:
    heap_scan = scan_reply(
        2,
        1003.0,
        types=[TypeCount("TreeNode", 4, 400)],
        instances={"TreeNode": InstanceCount(5, 5, 0, 0)},
    )
    found = m.ViolationRecord("residual", "kv", "1 unaccounted", [7])
    recorder.checkpoint(
        m.CheckpointReply(
            probe_id=2,
            index=3,
            t_s=1003.0,
            idle=True,
            pools={"kv": {"residual": 1}},
            locks={"full": 0},
            containers={"front_end": 0},
            running=0,
            waiting=0,
            counters={"finishes": 8},
            violations=[found],
            heap_scan=heap_scan,
        )
    )

    assert len(sink.samples) == 1
    assert sink.kinds() == ["checkpoint", "engine_violation"]
    (checkpoint,) = sink.all_events(Checkpoint)
    assert checkpoint.t_s == 3.0
    assert event_data(checkpoint) == {
        "index": 3,
        "idle": True,
        "pools": {"kv": {"residual": 1}},
        "locks": {"full": 0},
        "containers": {"front_end": 0},
        "running": 0,
        "waiting": 0,
        "counters": {"finishes": 8},
        "collectible": [{"type": "TreeNode", "count": 4, "bytes": 400}],
        "instances": {"TreeNode": {"live": 5, "expected": 5, "collectible": 0, "retained": 0}},
    }
    assert sink.all_events(EngineViolation)[0].slots == (7,)


def test_a_violation_in_a_step_names_the_step(recorder: Recorder, sink: FakeSink) -> None:
    record = m.ViolationRecord("alias", "mamba", "slot 3 has two holders", [3], 2)
    recorder.violation(m.Violation(1004.0, 77, record))

    (violation,) = sink.events
    assert violation.t_s == 4.0
    assert event_data(violation) == {
        "kind": "alias",
        "pool": "mamba",
        "message": "slot 3 has two holders",
        "slots": [3],
        "count": 2,
        "owners": [],
        "step": 77,
    }


def test_time_that_is_left_out_is_in_no_stamp_and_in_no_rate(
    recorder: Recorder, sink: FakeSink, clock: FakeClock
) -> None:
    def counted(tokens: float) -> dict[str, float]:
        return {"events.output_tokens": tokens, "events.prompt_tokens": 0.0, "events.finishes": 0.0}

    recorder.sample(1010.0, counted(0.0))
    clock.advance(110.0)
    recorder.leave_out(100.0)
    complete = recorder.sample(1112.0, counted(40.0))
    recorder.event(Note())

    assert sink.samples[-1][0] == pytest.approx(12.0)
    assert complete["throughput_tokens_per_s"] == pytest.approx(20.0)
    assert sink.events[-1].t_s == pytest.approx(10.0)


COUNTED = {"events.output_tokens": 10.0, "events.prompt_tokens": 20.0, "events.finishes": 1.0}
LATER = {"events.output_tokens": 40.0, "events.prompt_tokens": 90.0, "events.finishes": 6.0}


def test_rates_are_differences_of_counters_over_the_time_between() -> None:
    recorder = Recorder(FakeSink(), FakeClock(), 0.0)

    assert recorder.sample(1.0, COUNTED) == COUNTED
    rates = {"throughput_tokens_per_s": 50.0, "requests_per_s": 2.5}
    assert recorder.sample(3.0, LATER) == {**LATER, **rates}


def test_a_sample_without_counters_or_without_time_gives_no_rate() -> None:
    recorder = Recorder(FakeSink(), FakeClock(), 0.0)
    recorder.sample(1.0, COUNTED)

    assert recorder.sample(2.0, {"rss_bytes": 1.0}) == {"rss_bytes": 1.0}
    assert recorder.sample(1.0, LATER) == LATER
