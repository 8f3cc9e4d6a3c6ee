"""Overlapped steps change no token and lose no slot, although results arrive one step late."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.scheduler.schedule_batch import ScheduleBatch
from hybridbench.engine.scheduler.scheduler import Scheduler
from tests.builders import make_attention_engine, make_engine
from tests.engine_programs import EngineProgram, run_against_oracle
from tests.laws.test_engine_attention_only import OUTPUTS_BIND, PROMPTS_BIND
from tests.laws.test_engine_attention_only import SQUEEZES as PAGED_SQUEEZES
from tests.laws.test_engine_equals_no_reuse import LONGEST_OUTPUT, LONGEST_PROMPT, SQUEEZES


def make_hybrid_program(name: str, seed: int) -> EngineProgram:
    return EngineProgram(
        make_engine(**SQUEEZES[name], enable_overlap_schedule=True),
        random.Random(seed),
        longest_output=LONGEST_OUTPUT.get(name, 10),
        longest_prompt=LONGEST_PROMPT.get(name, 60),
    )


def make_paged_program(page_size: int, name: str, seed: int) -> EngineProgram:
    sizes = {"max_context_len": 352, "max_prefill_tokens": 256, "enable_overlap_schedule": True}
    longest = OUTPUTS_BIND if name == "outputs" else PROMPTS_BIND
    longest_prompt, longest_output, stretch = longest[page_size]
    return EngineProgram(
        make_attention_engine(page_size, **{**sizes, **PAGED_SQUEEZES[page_size, name]}),
        random.Random(seed),
        longest_prompt=longest_prompt,
        longest_output=longest_output,
        stretch=stretch,
        make_oracle=partial(make_attention_engine, page_size, max_context_len=352),
    )


def _one_end_each(program: EngineProgram) -> None:
    counters = program.engine.counters
    ends = counters.finishes + counters.abort_queued + counters.abort_prefill
    assert ends + counters.abort_decode == counters.requests_submitted, "not one end each"


def test_every_hybrid_program_gives_the_tokens_of_the_engine_without_reuse() -> None:
    names = enumerate([*SQUEEZES, "short prompts, long outputs", "kv tokens bind"])
    programs = ((f"seed {seed}, {name}", make_hybrid_program(name, seed)) for seed, name in names)

    seen = run_against_oracle(programs, 80, _one_end_each)

    for event, least in (
        ("surplus_steps", 90),
        ("late_tokens", 90),
        ("cow_copies", 50),
        ("retracts", 3),
        ("prefill_chunks", 30),
        ("abort_decode", 6),
    ):
        assert seen[event] >= least, (event, seen)


def test_every_attention_only_program_gives_the_tokens_of_the_engine_without_reuse() -> None:
    programs = (
        (f"seed {seed}, pages of {page_size}, {name}", make_paged_program(page_size, name, seed))
        for seed, (page_size, name) in enumerate(PAGED_SQUEEZES)
    )

    seen = run_against_oracle(programs, 45, _one_end_each)

    for event, least in (("surplus_steps", 45), ("retracts", 1), ("prefix_hits", 15)):
        assert seen[event] >= least, (event, seen)


def test_a_chunk_cache_serves_overlapped_steps_as_well() -> None:
    engine = make_engine(cache="chunk", kv_tokens=220, enable_overlap_schedule=True)

    seen = run_against_oracle(
        [("chunk", EngineProgram(engine, random.Random(3)))], 100, _one_end_each
    )

    assert seen["surplus_steps"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3000, 3036))
def test_long_programs_give_the_tokens_of_the_engine_without_reuse(seed: int) -> None:
    if seed % 2:
        program = make_hybrid_program(list(SQUEEZES)[seed // 2 % len(SQUEEZES)], seed)
    else:
        program = make_paged_program(*list(PAGED_SQUEEZES)[seed // 2 % len(PAGED_SQUEEZES)], seed)

    run_against_oracle([("one program", program)], 2500, _one_end_each)


def _share_when_settled(scheduler: Scheduler, batch: ScheduleBatch | None) -> None:
    """A mutant: prompts are shared one step late, when their results are settled."""
    before, scheduler.in_flight = scheduler.in_flight, batch
    if batch is not None and batch.forward.mode == "extend":
        for req in batch.reqs:
            req.kv.kv_committed_len = req.kv.kv_allocated_len
            if req is batch.chunked_req:
                scheduler._stash_chunk(req)
            else:
                scheduler.running.append(req)
    if before is not None and before.forward.mode == "extend":
        for req, record in zip(before.reqs, before.records, strict=True):
            if req.kv is record and req is not before.chunked_req:
                scheduler._pools.cache_unfinished_req(req)


@pytest.mark.parametrize(
    ("method", "mutant"),
    [
        ("launched", _share_when_settled),
        ("_commit_launched", lambda self, req: None),
    ],
)
def test_the_law_sees_a_state_that_is_shared_at_the_wrong_moment(
    method: str, mutant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scheduler, method, mutant)

    with pytest.raises(AssertionError):
        _run_branching_programs()


def _run_branching_programs() -> None:
    for seed in range(6):
        run_against_oracle(
            [("one program", make_hybrid_program("long prompts that branch", seed))],
            250,
            _one_end_each,
        )


def test_the_law_sees_a_result_that_is_taken_for_a_later_admission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mutant: results are matched by request instead of by the request's record at launch."""
    healthy = Scheduler.settle

    def settle(
        self: Scheduler, batch: ScheduleBatch, token_ids: list[int], outcome: object
    ) -> None:
        for row, req in enumerate(batch.reqs):
            batch.records[row] = req.kv
        healthy(self, batch, token_ids, outcome)  # type: ignore[arg-type]

    monkeypatch.setattr(Scheduler, "settle", settle)
    engine: Engine = make_engine(enable_overlap_schedule=True)

    with pytest.raises(AssertionError, match="not one end each"):
        run_against_oracle(
            [("one program", EngineProgram(engine, random.Random(1)))], 100, _one_end_each
        )
