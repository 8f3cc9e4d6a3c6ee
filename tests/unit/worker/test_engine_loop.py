"""The worker's loop with a real engine and a real socket, on a thread of this process."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import repeat

import pytest

from hybridbench.defects.catalog import CONTROLS
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.base import CacheSanityError
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent
from hybridbench.engine.memory.owners import REQ, DoubleFreeError
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import HiCache
from hybridbench.foundation.metrics import declared
from hybridbench.records import messages as m
from hybridbench.worker.answers import AnswerSample
from hybridbench.worker.engine_loop import make_payload
from tests.builders import make_attention_engine, run_to_idle
from tests.host_transfers import ChosenTransfers
from tests.unit.worker.engines import PATIENCE_S, in_process_worker, make_engine, stopped_loop

GREEDY = m.Sampling(max_new_tokens=4)
PROMPT = [5, 6, 7, 8, 9, 10, 11]


def events_of(told: list[m.FromWorker]) -> m.StepEvents:
    """Merge all step events into one message."""
    merged = m.StepEvents(0.0, 0, [], [], [], [], [])
    for message in told:
        if isinstance(message, m.StepEvents):
            merged.admitted.extend(message.admitted)
            merged.first_tokens.extend(message.first_tokens)
            merged.finished.extend(message.finished)
            merged.rejected.extend(message.rejected)
            merged.aborted.extend(message.aborted)
    return merged


def test_tokens_over_the_wire_are_those_of_the_engine() -> None:
    (expected,) = make_engine().generate(
        [PROMPT], SamplingParams(max_new_tokens=4, ignore_eos=True)
    )
    with in_process_worker(make_engine()) as worker:
        told = worker.ask(m.Submit("a", PROMPT, GREEDY), m.Drain(), until=m.Drained)

    events = events_of(told)
    (ended,) = events.finished
    assert events.admitted == events.first_tokens == ["a"]
    assert (ended.rid, ended.output_ids, ended.reason) == ("a", expected, "length")
    assert ended.prompt_tokens == len(PROMPT)
    assert ended.ttft_s is not None
    assert ended.itl_s is not None


def test_only_requests_that_stream_have_their_tokens_in_every_step() -> None:
    engine = make_engine()
    with in_process_worker(engine) as worker:
        told = worker.ask(
            m.Submit("streams", PROMPT, GREEDY, stream=True),
            m.Submit("waits", PROMPT[:3], GREEDY),
            m.Submit("refused", [], GREEDY, stream=True),
            m.Drain(),
            until=m.Drained,
        )
        worker.ask(
            m.Submit("leaves", PROMPT, GREEDY, stream=True),
            m.Disconnect("leaves"),
            m.Submit("leaves", PROMPT, GREEDY),
            m.Drain(),
            until=m.Drained,
        )

    events = [message for message in told if isinstance(message, m.StepEvents)]
    emitted = [ids for message in events for ids in message.emitted.get("streams", ())]
    (ended,) = [one for one in events_of(told).finished if one.rid == "streams"]
    assert len(emitted) == 3
    assert emitted == ended.output_ids[:3]
    assert all(set(message.emitted) <= {"streams"} for message in events)


def test_what_cannot_be_served_is_rejected_and_the_loop_goes_on() -> None:
    with in_process_worker(make_engine()) as worker:
        told = worker.ask(
            m.Submit("twice", PROMPT, GREEDY),
            m.Submit("twice", PROMPT, GREEDY),
            m.Submit("long", list(range(500)), GREEDY),
            m.Submit("odd", PROMPT, m.Sampling(max_new_tokens=0)),
            m.Abort("nobody"),
            m.Disconnect("nobody"),
            m.Drain(),
            until=m.Drained,
        )

    events = events_of(told)
    assert sorted(rejected.rid for rejected in events.rejected) == ["long", "odd", "twice"]
    assert [ended.rid for ended in events.finished] == ["twice"]


def test_priorities_and_controls_reach_the_engine() -> None:
    engine = make_engine(enable_priority_scheduling=True, max_running_requests=1)
    with in_process_worker(engine) as worker:
        told = worker.ask(
            m.PauseGeneration("retract"),
            m.Submit("low", PROMPT, GREEDY, priority=1),
            m.Submit("high", PROMPT, GREEDY, priority=2),
            m.ContinueGeneration(),
            m.Drain(),
            until=m.Drained,
        )
        worker.ask(m.Submit("a", PROMPT, GREEDY), m.AbortAll(), m.Drain(), until=m.Drained)

    assert events_of(told).admitted == ["high", "low"]
    assert engine.counters.pauses == 1
    assert engine.is_idle


def test_a_drain_resumes_a_paused_engine() -> None:
    with in_process_worker(make_engine()) as worker:
        told = worker.ask(
            m.PauseGeneration("in_place"), m.Submit("a", PROMPT, GREEDY), m.Drain(),
            until=m.Drained,
        )  # fmt: skip

    assert [ended.rid for ended in events_of(told).finished] == ["a"]


def test_a_session_over_the_wire_resumes_and_closes() -> None:
    plain = make_engine()
    (first,) = plain.generate([PROMPT], SamplingParams(max_new_tokens=4, ignore_eos=True))
    (second,) = plain.generate(
        [[*PROMPT, *first, 40]], SamplingParams(max_new_tokens=4, ignore_eos=True)
    )
    engine = make_engine()
    with in_process_worker(engine) as worker:
        told = worker.ask(
            m.OpenSession("s"),
            m.Submit("a", PROMPT, GREEDY, session_id="s"),
            m.Submit("busy", [40], GREEDY, session_id="s"),
            m.Submit("nowhere", [40], GREEDY, session_id="t"),
            m.Drain(),
            until=m.Drained,
        )
        told += worker.ask(
            m.Submit("b", [40], GREEDY, session_id="s"),
            m.CloseSession("s"),
            m.CloseSession("t"),
            m.Drain(),
            until=m.Drained,
        )

    events = events_of(told)
    assert {ended.rid: ended.output_ids for ended in events.finished} == {"a": first, "b": second}
    assert sorted(rejected.rid for rejected in events.rejected) == ["busy", "nowhere"]
    assert (engine.counters.session_restores, engine.counters.session_closes) == (1, 1)


def test_an_idle_loop_wakes_up_for_a_session_that_times_out() -> None:
    engine = make_engine()
    with in_process_worker(engine) as worker:
        worker.ask(
            m.OpenSession("s", 0.1),
            m.Submit("a", PROMPT, GREEDY, session_id="s"),
            m.Drain(),
            until=m.Drained,
        )
        deadline_s = time.monotonic() + PATIENCE_S
        # Nothing is sent meanwhile, so the loop sleeps.
        while len(engine.scheduler.sessions) and time.monotonic() < deadline_s:
            threading.Event().wait(0.02)

    assert engine.counters.session_timeouts == 1
    assert engine.pool_stats()["kv"].session_held == 0


def test_counters_are_declared_consistent_and_fresh() -> None:
    with in_process_worker(make_engine()) as worker:
        worker.ask(m.Submit("a", PROMPT, GREEDY), m.Drain(), until=m.Drained)
        told = worker.ask(m.Counters(7), until=m.CountersReply)

    (reply,) = [message for message in told if isinstance(message, m.CountersReply)]
    assert (reply.probe_id, reply.fresh, reply.busy, reply.step_age_s) == (7, True, False, 0.0)
    for name in reply.values:
        declared(name)
    values = reply.values
    assert values["events.finishes"] == 1
    assert values["events.output_tokens"] == 4
    assert values["pool.req.available"] == 4
    assert values["pool.kv.available"] + values["pool.kv.evictable"] == 512
    assert values["pool.kv.residual"] == values["pool.kv.waiting_held"] == 0
    assert values["requests_without_client"] == values["oldest_request_s"] == 0
    assert values["container.front_end.len"] == values["container.kv_events.len"] == 0
    assert values["ttft_ms_p50"] > 0
    # Four tokens have three intervals between them.
    counted = {name: sum(counts.values()) for name, counts in reply.latencies.items()}
    assert counted == {"ttft": 1, "itl": 3, "e2e": 1}
    assert values["probe_stop_s"] >= 0
    assert values["step_s"] > 0


def test_counters_are_answered_while_the_loop_hangs() -> None:
    engine = make_engine()
    step, go_on, stuck = engine.step, threading.Event(), threading.Event()

    def hang() -> object:
        stuck.set()
        go_on.wait(PATIENCE_S)
        return step()

    engine.step = hang  # type: ignore[method-assign, assignment]
    with in_process_worker(engine) as worker:
        worker.wire.post(m.Submit("a", PROMPT, GREEDY))
        worker.wire.exchange(0.0)
        assert stuck.wait(PATIENCE_S)
        (reply,) = worker.ask(m.Counters(1), until=m.CountersReply)
        go_on.set()
        told = worker.ask(m.Drain(), until=m.Drained)

    assert isinstance(reply, m.CountersReply)
    assert not reply.fresh
    assert reply.busy
    assert reply.step_age_s > 0.0
    assert "allocated_blocks" in reply.values
    assert "events.finishes" not in reply.values, "nothing stale passes for new"
    assert len(events_of(told).finished) == 1


def test_a_checkpoint_is_the_state_before_the_requests_that_follow_it() -> None:
    with in_process_worker(make_engine()) as worker:
        worker.ask(m.Submit("a", PROMPT, GREEDY), m.Drain(), until=m.Drained)
        told = worker.ask(
            m.Checkpoint(9, 2, audit=True),
            m.Submit("b", [40, 41, 42], GREEDY),
            until=m.CheckpointReply,
        )

    (reply,) = [message for message in told if isinstance(message, m.CheckpointReply)]
    assert (reply.probe_id, reply.index, reply.idle) == (9, 2, True)
    assert reply.waiting == reply.running == 0
    assert reply.violations == []
    assert reply.locks == {"full": 0, "mamba": 0}
    assert reply.pools["req"]["available"] == 4
    assert reply.heap_scan.error == ""
    assert reply.heap_scan.stop_cpu_s is not None
    assert reply.heap_scan.stop_cpu_s > 0.0
    nodes = reply.heap_scan.instances["TreeNode"]
    assert nodes.live >= nodes.expected > 0


def test_a_request_that_reads_freed_kv_is_named_before_a_pause() -> None:
    """No sum shows it, and no idle engine."""
    engine = make_engine()
    engine.submit("a", PROMPT, SamplingParams(max_new_tokens=4, ignore_eos=True))
    while not engine.scheduler.running:
        engine.step()
    engine.pause_generation("in_place")
    (req,) = engine.scheduler.running
    freed = int(engine.pools.token_to_kv_pool_allocator.free_pages[0])
    engine.pools.req_to_token_pool.req_to_token[req.kv.row, 0] = freed
    with in_process_worker(engine) as worker:
        told = worker.ask(m.Drain(), until=m.Drained)

    (violation,) = [message.violation for message in told if isinstance(message, m.Violation)]
    assert (violation.kind, violation.slots) == ("alias", [freed])
    assert "request a reads" in violation.message


def test_a_lost_slot_is_named_by_a_checkpoint() -> None:
    engine = make_engine()
    lost = engine.pools.mamba_allocator.alloc(1, REQ)
    assert lost is not None
    with in_process_worker(engine) as worker:
        told = worker.ask(m.Checkpoint(1, 0), until=m.CheckpointReply)

    (reply,) = [message for message in told if isinstance(message, m.CheckpointReply)]
    assert reply.pools["mamba"]["residual"] == 1
    assert [record.kind for record in reply.violations] == ["residual"]
    assert reply.violations[0].slots == lost


def test_what_waiting_requests_hold_between_two_samples_is_not_missed() -> None:
    engine = make_engine()
    with in_process_worker(engine) as worker:
        worker.ask(m.Submit("a", PROMPT, GREEDY), m.Drain(), until=m.Drained)
        # A waiting request holds a slot after one step, and no longer when the sample is taken.
        engine.submit("w", PROMPT, SamplingParams(max_new_tokens=2))
        (req,) = engine.scheduler.waiting_queue
        slots = engine.pools.mamba_allocator.alloc(1, REQ)
        assert slots is not None
        req.kv.mamba_pool_idx = slots[0]
        worker.metrics.steps.after_step()
        req.kv.mamba_pool_idx = None
        engine.pools.mamba_allocator.free(slots, REQ)
        worker.metrics.steps.after_step()
        first = worker.metrics.between_steps()
        second = worker.metrics.between_steps()

    assert first["pool.mamba.waiting_held"] == 1
    assert first["pool.kv.waiting_held"] == 0
    assert second["pool.mamba.waiting_held"] == 0, "told once"


def test_the_cache_is_flushed_on_demand_and_the_worker_says_goodbye() -> None:
    with in_process_worker(make_engine()) as worker:
        worker.ask(m.Submit("a", PROMPT, GREEDY), m.Drain(), until=m.Drained)
        (flushed,) = worker.ask(m.Flush(), until=m.Flushed)
        (goodbye,) = worker.ask(m.Shutdown(), until=m.Goodbye)
        worker.thread.join(PATIENCE_S)
        alive = worker.thread.is_alive()
        evictable = worker.engine.pool_stats()["kv"].evictable

    assert isinstance(flushed, m.Flushed)
    assert flushed.done
    assert evictable == 0
    assert isinstance(goodbye, m.Goodbye)
    assert not alive


def test_at_the_end_the_worker_gives_back_what_it_can_and_tells_what_it_held() -> None:
    with in_process_worker(make_engine()) as worker:
        worker.ask(m.Submit("a", PROMPT, GREEDY), m.Drain(), until=m.Drained)
        (given,) = worker.ask(m.Reclaim(), until=m.Reclaimed)
        evictable = worker.engine.pool_stats()["kv"].evictable

    assert isinstance(given, m.Reclaimed)
    assert evictable == 0, "the cache was flushed"
    assert given.at_rest_bytes > 0
    assert given.after_collect_bytes > 0


def test_what_allocators_without_owner_checks_would_have_refused_is_told_at_the_end() -> None:
    engine = make_engine(check_owners=False)
    with in_process_worker(engine) as worker:
        taken = engine.pools.token_to_kv_pool_allocator.alloc(3, REQ)
        assert taken is not None
        engine.pools.token_to_kv_pool_allocator.free(taken)
        engine.pools.token_to_kv_pool_allocator.free(taken)
        told = worker.ask(m.Shutdown(), until=m.Goodbye)

    (truth,) = [message for message in told if isinstance(message, m.InjectedTruth)]
    assert truth.counts == {"owner-ledger": {"kv": 3, "mamba": 0, "req": 0}}

    with in_process_worker(make_engine()) as worker:
        told = worker.ask(m.Shutdown(), until=m.Goodbye)
    assert not any(isinstance(message, m.InjectedTruth) for message in told)


def test_counts_of_the_last_idle_checkpoint_are_kept_beside_those_of_the_end() -> None:
    harm = Truth()
    defect = replace(CONTROLS[0], slug="planted", patches=(), truth=harm)
    with in_process_worker(make_engine(), [defect]) as worker:
        harm.add("slots_lost", 2)
        worker.ask(m.Checkpoint(1, 0, False), until=m.CheckpointReply)
        harm.add("slots_lost", 5)
        worker.ask(m.Submit("a", PROMPT, m.Sampling(max_new_tokens=100)), until=m.StepEvents)
        worker.ask(m.Checkpoint(2, 1, False), until=m.CheckpointReply)
        told = worker.ask(m.Shutdown(), until=m.Goodbye)

    (truth,) = [message for message in told if isinstance(message, m.InjectedTruth)]
    assert truth.counts == {"planted": {"slots_lost": 7}}
    assert truth.at_idle == {"planted": {"slots_lost": 2}}


def test_counts_before_the_engine_is_steady_are_kept_beside_those_of_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finished = property(lambda engine: engine.counters.finishes > 0)
    monkeypatch.setattr(Engine, "is_steady", finished)
    harm = Truth()
    defect = replace(CONTROLS[0], slug="planted", patches=(), truth=harm)
    with in_process_worker(make_engine(), [defect]) as worker:
        harm.add("slots_lost", 2)
        worker.ask(m.Submit("a", PROMPT, GREEDY), m.Drain(), until=m.Drained)
        harm.add("slots_lost", 5)
        told = worker.ask(m.Shutdown(), until=m.Goodbye)

    (truth,) = [message for message in told if isinstance(message, m.InjectedTruth)]
    assert truth.counts == {"planted": {"slots_lost": 7}}
    assert truth.before_steady == {"planted": {"slots_lost": 2}}


def test_equal_seeds_give_equal_payloads_and_size_zero_gives_none() -> None:
    assert make_payload(1000, 7) == make_payload(1000, 7)
    assert make_payload(1000, 7) != make_payload(1000, 8)
    assert len(make_payload(1000, 7)) == 1000
    assert make_payload(0, 7) == b""


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_over_the_wire_are_those_of_the_engine(stream: bool) -> None:
    # In float64, other requests in the batch cannot change a logprob rounded to float32.
    engine = make_engine(dtype="float64")
    engine.submit("here", PROMPT, SamplingParams(max_new_tokens=4, logprobs=2))
    (expected,) = [event.logprobs for event in run_to_idle(engine) if event.ends_request]
    asking = m.Sampling(max_new_tokens=4, logprobs=2)
    with in_process_worker(make_engine(dtype="float64")) as worker:
        told = worker.ask(
            m.Submit("asks", PROMPT, asking, stream=stream),
            m.Submit("does not", PROMPT[:3], GREEDY, stream=True),
            m.Submit("refused", [], asking, stream=stream),
            m.Submit("wrong", PROMPT, m.Sampling(max_new_tokens=4, logprobs=-1)),
            m.Drain(),
            until=m.Drained,
        )

    events = [message for message in told if isinstance(message, m.StepEvents)]
    by_message = [message.logprobs["asks"] for message in events if message.logprobs]
    assert [(one.logprob, one.best) for part in by_message for one in part] == list(expected)
    assert [len(part) for part in by_message] == ([1, 1, 1, 1] if stream else [4])
    assert {rid for message in events for rid in message.logprobs} == {"asks"}
    assert [one.rid for one in events_of(told).rejected] == ["wrong", "refused"]


def test_a_request_over_the_wire_brings_the_payload_of_its_seed() -> None:
    engine = make_engine()
    seen: list[tuple[str, bytes]] = []
    add = engine.scheduler.add

    def look(req: Req) -> None:
        add(req)
        seen.append((req.rid, req.payload))

    engine.scheduler.add = look  # type: ignore[method-assign]
    sampling = m.Sampling(max_new_tokens=2)
    with in_process_worker(engine) as worker:
        worker.ask(
            m.Submit("plain", [5, 6, 7, 8, 9], sampling),
            m.Submit("rich", [5, 6, 7, 8, 9], sampling, payload_bytes=512, payload_seed=3),
            m.Drain(),
            until=m.Drained,
        )

    assert seen == [("plain", b""), ("rich", make_payload(512, 3))]


def test_the_first_copy_to_the_host_that_fails_is_told_once() -> None:
    fails = ChosenTransfers(repeat(0), lambda number: number > 1)
    engine = make_attention_engine(kv_tokens=200, hicache=HiCache(ratio=1.0), transfers=fails)
    sampling = m.Sampling(max_new_tokens=2)
    prompts = [list(range(first, first + 9)) for first in range(0, 40, 10)]
    with in_process_worker(engine) as worker:
        told = worker.ask(
            *(m.Submit(f"r{n}", prompt, sampling) for n, prompt in enumerate(prompts)),
            m.Drain(),
            until=m.Drained,
        )

    assert engine.counters.host_failures > 1
    (violation,) = [message.violation for message in told if isinstance(message, m.Violation)]
    assert violation.kind == "transfer"
    assert violation.message.startswith("a copy to or from the host failed: ")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DoubleFreeError("cannot free KV tokens [3]"), "ownership"),
        (CacheSanityError("nodes were removed while being loaded", [7]), "tree"),
    ],
)
def test_the_engine_s_own_word_is_told_before_the_worker_falls(
    error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[EngineEvent]:
        raise error

    engine = make_engine()
    monkeypatch.setattr(engine, "step", fail)
    with stopped_loop(engine) as (loop, parent):
        with pytest.raises(type(error)):
            loop._step()
        told = parent.exchange(1.0)

    (violation,) = [message.violation for message in told if isinstance(message, m.Violation)]
    assert (violation.kind, violation.message) == (kind, str(error))


def test_a_drawn_answer_is_sent_before_the_end_of_its_request_is_reported() -> None:
    engine = make_engine()
    engine.submit("a", PROMPT, SamplingParams(max_new_tokens=1))

    with stopped_loop(engine, AnswerSample(4, engine.config)) as (loop, parent):
        while engine.has_work:
            loop._step()
        loop._tell()
        told = [type(message) for message in parent.exchange(1.0)]

    assert told.index(m.FinishedAnswer) < told.index(m.StepEvents)
