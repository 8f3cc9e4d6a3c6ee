"""Priorities, preemption, a limited queue, time-outs, abort-all and pauses.

They change no token and lose nothing, and no request is preempted in vain.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.owners import OwnershipError
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.invariants import InvariantError
from hybridbench.engine.scheduler.preemption import Preemption
from hybridbench.engine.scheduler.prefill import PrefillAdder
from hybridbench.engine.scheduler.scheduler import Scheduler
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import (
    Audits,
    assert_idle_and_clean,
    assert_nothing_lost,
    make_attention_engine,
    make_engine,
)
from tests.engine_programs import EngineProgram
from tests.laws.engine_script import always, every_stride, never, points, stages_of
from tests.laws.test_engine_allocation_failures import FailsOnce, calls_to_fail, decode_call

DARING = NewTokenRatio(init=1.0, min=0.0, decay_steps=1)
QUEUE: dict[str, Any] = {
    "max_queued_requests": 6, "req_waiting_timeout_s": 30.0, "enable_priority_scheduling": True,
    "priority_scheduling_preemption_threshold": 1,
}  # fmt: skip
SQUEEZES: dict[str, dict[str, Any]] = {
    "states bind": {"mamba_slots": 5, "kv_tokens": 400},
    "kv binds": {"mamba_slots": 40, "kv_tokens": 130, "max_running_requests": 14},
    "kv binds, daring": {
        "mamba_slots": 40, "kv_tokens": 130, "max_running_requests": 14, "new_token_ratio": DARING,
    },
    "rows bind, smaller first": {
        "max_running_requests": 2, "schedule_low_priority_values_first": True,
    },
    "short chunks, longest prefix first": {
        "mamba_slots": 12, "kv_tokens": 160, "chunked_prefill_size": 7, "schedule_policy": "lpm",
    },
    "overlapped": {
        "mamba_slots": 40, "kv_tokens": 130, "max_running_requests": 14,
        "enable_overlap_schedule": True,
    },
    "overlapped, few states": {"mamba_slots": 6, "enable_overlap_schedule": True},
    "guessing": {"mamba_slots": 40, "kv_tokens": 130, "speculative_algorithm": "NGRAM"},
    "saved states": {
        "mamba_slots": 16, "kv_tokens": 140, "mamba_scheduler_strategy": "extra_buffer",
        "mamba_track_interval": 4, "mamba_cache_chunk_size": 4, "enable_overlap_schedule": True,
    },
    "states saved when due": {
        "mamba_slots": 12, "kv_tokens": 140, "mamba_scheduler_strategy": "extra_buffer_lazy",
        "mamba_track_interval": 4, "mamba_cache_chunk_size": 4,
    },
    "no reuse": {"cache": "chunk", "kv_tokens": 130, "mamba_slots": 16},
    "pages of 16": {"page_size": 16, "kv_tokens": 160, "chunked_prefill_size": 32},
}  # fmt: skip
WANTED = (
    "preemptions", "retracts", "queue_limit_aborts", "queue_timeouts", "pauses", "abort_queued",
    "abort_prefill", "abort_decode", "flushes", "refusals", "prefill_chunks", "cow_copies",
)  # fmt: skip


class QueueProgram(EngineProgram):
    """An ``EngineProgram`` during which the queue's controls are used.

    After each preemption, the request that it made room for must be admitted in the same step.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.clock = FakeClock()
        changes = {**QUEUE, **SQUEEZES[name]}
        paged = "page_size" in changes
        engine = (make_attention_engine if paged else make_engine)(clock=self.clock, **changes)
        oracle = make_attention_engine if paged else make_engine
        super().__init__(engine, random.Random(seed), longest_output=20, make_oracle=oracle)
        self.priorities = (None, 0, 1, 2, 5)
        self.in_vain: list[str] = []
        self._served: list[Req] = []
        self._preempt = engine.scheduler._preempt
        engine.scheduler._preempt = self._watched  # type: ignore[method-assign]

    def _watched(self, req: Req, adder: PrefillAdder) -> bool:
        preempted = self._preempt(req, adder)
        if preempted:
            self._served.append(req)
        return preempted

    def step(self) -> None:
        self._served = []
        self.clock.advance(self.rng.random() * 2)
        super().step()
        self.in_vain += [
            req.rid for req in self._served if req in self.engine.scheduler.waiting_queue
        ]
        limit = self.engine.config.max_queued_requests
        fresh = [req for req in self.engine.scheduler.waiting_queue if not req.is_retracted]
        assert limit is None or len(fresh) <= limit

    def control(self) -> None:
        """Use a random control."""
        engine, draw = self.engine, self.rng.random()
        if draw < 0.1:
            engine.abort_all()
        elif draw < 0.55:
            engine.pause_generation(self.rng.choice(("in_place", "retract", "retract", "abort")))
            assert_nothing_lost(engine)
            if draw < 0.3:
                engine.flush_cache()
        else:
            engine.continue_generation()

    def run_with_controls(self, actions: int) -> None:
        for _ in range(actions):
            draw = self.rng.random()
            if draw < 0.02:
                self.control()
            elif draw < 0.05:
                self.abort()
            elif draw < 0.35 and len(self.live) < 14:
                self.submit()
            else:
                self.step()
                if self.engine.is_paused and self.rng.random() < 0.3:
                    self.engine.continue_generation()
        self.engine.continue_generation()
        self.finish()


@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_program_at_the_controls_gives_the_tokens_of_the_engine_without_reuse(
    rounds: int,
) -> None:
    seen: Counter[str] = Counter()
    preempted: Counter[str] = Counter()
    for seed, name in enumerate([*SQUEEZES] * rounds):
        program = QueueProgram(name, seed)
        try:
            program.run_with_controls(150)
            program.compare_with_oracle()
            assert program.in_vain == []
        except BaseException as error:
            error.add_note(f"seed {seed}, {name}")
            raise
        counts = program.engine.counters.as_dict()
        preempted[name] += counts["preemptions"]
        seen.update(counts)
    assert [name for name in SQUEEZES if not preempted[name]] == []
    for event in WANTED:
        assert seen[event] > 0, (event, seen)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2035))
def test_long_programs_at_the_controls_give_the_tokens_of_the_engine_without_reuse(
    seed: int,
) -> None:
    program = QueueProgram(list(SQUEEZES)[seed % len(SQUEEZES)], seed)

    program.run_with_controls(3000)

    program.compare_with_oracle()
    assert program.in_vain == []


# Admits only requests that can finish without being retracted for lack of room.
CAREFUL = NewTokenRatio(init=1.0, min=1.0)


class PriorityScript:
    """A deterministic script of ten requests with four priorities on two rows.

    ``looks`` returns whether to check every slot after a step.  ``stages_before`` has, for each
    step, the requests that were live when it began, and their stages.
    """

    def __init__(self) -> None:
        self.engine: Engine = make_engine(
            kv_tokens=80, mamba_slots=6, max_running_requests=2, chunked_prefill_size=16,
            enable_priority_scheduling=True, priority_scheduling_preemption_threshold=0,
            new_token_ratio=CAREFUL,
        )  # fmt: skip
        self.outputs: dict[str, list[int]] = {}
        self.stages_before: list[dict[str, str]] = []
        self.steps = 0
        self.looks: Callable[[], bool] = always
        self._audits = Audits()
        self._to_submit = [(f"r{i}", i * 7 % 4) for i in range(10)]
        self._submitted: set[str] = set()
        self._system = list(range(1, 13))

    @classmethod
    def again(cls, steps: int) -> PriorityScript:
        """Repeat the first ``steps`` steps of a run without checks, which have passed before."""
        script = cls()
        script.looks = never
        for _ in range(steps):
            script.step()
        script.looks = always
        return script

    def step(self) -> None:
        live = self._submitted - self.outputs.keys()
        self.stages_before.append(stages_of(self.engine, sorted(live)))
        for rid, priority in self._to_submit[:1] if self.steps % 2 == 0 else ():
            prompt = [*self._system, 20 + int(rid[1:]), 40, *range(int(rid[1:]) * 2)]
            params = SamplingParams(max_new_tokens=8)
            self.engine.submit(rid, prompt, params, priority=priority)
            self._submitted.add(rid)
            del self._to_submit[:1]
        self.steps += 1
        for event in self.engine.step():
            if event.ends_request:
                self.outputs[event.rid] = list(event.output_ids)
        if self.looks() and self._audits.are_due():
            assert_nothing_lost(self.engine)

    def run(self) -> None:
        while self._to_submit or self.engine.has_work:
            assert self.steps < 400, "the run does not end"
            self.step()


@every_stride
def test_a_request_that_leaves_at_any_step_of_preempting_traffic_takes_nothing_along(
    stride: int,
) -> None:
    healthy = PriorityScript()
    healthy.run()
    assert healthy.engine.counters.preemptions > 2
    stages: Counter[str] = Counter()

    for at, rid in points(healthy.stages_before, "preemption", stride):
        script = PriorityScript.again(at)
        assert script.engine.abort(rid)
        script.run()
        assert_idle_and_clean(script.engine)
        for other, output in healthy.outputs.items():
            assert other == rid or script.outputs[other] == output
        stages.update(script.engine.counters.as_dict())

    for stage in ("abort_queued", "abort_prefill", "abort_decode"):
        assert stages[stage] > 0


@every_stride
@pytest.mark.parametrize("where", ["state slots", "rows", "prefill tokens", "decode tokens"])
def test_any_single_failed_allocation_under_preemption_loses_nothing_and_changes_no_token(
    where: str, stride: int
) -> None:
    healthy, counting = run_with_failure(where, 0)

    for k in calls_to_fail(counting.calls, where, stride):
        script, failing = run_with_failure(where, k)
        assert failing.has_failed()
        assert_idle_and_clean(script.engine)
        assert script.outputs == healthy.outputs, f"failing call {k}"

    assert counting.calls > 4, "the run hardly allocates"


def run_with_failure(where: str, k: int) -> tuple[PriorityScript, FailsOnce]:
    script = PriorityScript()
    pools = script.engine.pools
    holder: object
    holder, method = {
        "state slots": (pools.mamba_allocator, "alloc"),
        "rows": (pools.req_to_token_pool, "alloc"),
        "prefill tokens": (pools.token_to_kv_pool_allocator, "alloc_extend"),
        "decode tokens": (pools.token_to_kv_pool_allocator, decode_call(pools)),
    }[where]
    failing = FailsOnce(getattr(holder, method), k)
    setattr(holder, method, failing)
    script.looks = failing.has_failed
    script.run()
    return script, failing


# The laws above can fail.


def _run_some(seeds: range = range(8)) -> None:
    for seed in seeds:
        for name in SQUEEZES:
            program = QueueProgram(name, seed)
            program.run_with_controls(300)
            program.compare_with_oracle()
            assert program.in_vain == []


def test_a_victim_that_keeps_what_it_held_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: Scheduler, req: Req) -> None:
        self.running = [other for other in self.running if other is not req]
        self._enqueue(req)

    monkeypatch.setattr(Scheduler, "_retract_running", keep)

    with pytest.raises(InvariantError, match="waiting request"):
        _run_some()


def test_preempting_without_looking_whether_it_helps_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_best(
        self: Preemption, req: Req, running: list[Req], adder: PrefillAdder
    ) -> list[Req]:
        del adder
        return self._candidates(req, running)[:1]

    monkeypatch.setattr(Preemption, "victims", first_best)
    programs = (QueueProgram(name, seed) for seed in range(4) for name in SQUEEZES)

    def sends_back_in_vain(program: QueueProgram) -> bool:
        program.run_with_controls(300)
        return bool(program.in_vain)

    assert any(map(sends_back_in_vain, programs))


def test_a_pause_that_forgets_the_request_between_chunks_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in sglang 0.5.13: the request is in no batch, so it is not retracted."""

    def forget(self: Scheduler, *, retract: bool) -> None:
        self.is_paused = True
        if retract:
            running, self.running, self.chunked_req = self.running, [], None
            for req in running:
                self._retract(req)

    monkeypatch.setattr(Scheduler, "pause", forget)

    with pytest.raises((AssertionError, InvariantError)):
        # Starts at the first seed whose programs pause between two chunks.
        _run_some(range(1, 9))


def test_a_full_queue_that_drops_a_request_without_a_word_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drop(self: Scheduler, req: Req) -> None:
        self._enqueue(req)
        refused = self._rules.too_many(req, self.waiting_queue)
        if refused is not None:
            self.waiting_queue.remove(refused)

    monkeypatch.setattr(Scheduler, "add", drop)

    with pytest.raises(AssertionError, match="a request never ended"):
        _run_some()


def test_a_flush_under_requests_that_are_only_paused_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def flush(self: Engine) -> bool:
        self.pools.empty_tree()
        return True

    monkeypatch.setattr(Engine, "flush_cache", flush)

    with pytest.raises((AssertionError, InvariantError, OwnershipError)):
        # Starts at the first seed whose programs flush while requests are paused.
        _run_some(range(3, 11))
