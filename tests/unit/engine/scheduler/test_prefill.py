from __future__ import annotations

from typing import Any

from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.owners import REQ
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.prefill import AddReqResult, PrefillAdder, PrefillLimits
from hybridbench.engine.scheduler.release import RequestRelease
from tests.builders import make_attention_engine, make_engine, make_req

SYSTEM = list(range(1, 13))


def _adder(
    engine: Engine,
    *,
    rem_input: int = 64,
    rem_chunk: int | None = None,
    running: tuple[Req, ...] = (),
) -> PrefillAdder:
    limits = PrefillLimits(rem_input, rem_chunk, cut_at_branching=True)
    return PrefillAdder(engine.pools, RequestRelease(engine.pools), limits, running, 0.5)


def _warm_engine(**changes: Any) -> Engine:
    """Return an engine with SYSTEM in its tree, and a state at its end."""
    engine = make_engine(check_level="off", **changes)
    engine.generate([SYSTEM], SamplingParams(max_new_tokens=1))
    return engine


def _free_slots(engine: Engine) -> int:
    return engine.pools.mamba_allocator.available_size()


def test_requests_are_added_until_the_queue_ends() -> None:
    engine = make_engine()
    adder = _adder(engine)
    queue = [make_req(f"r{i}", [i + 1] * 5) for i in range(3)]

    assert adder.admit_from(queue) is AddReqResult.CONTINUE
    assert adder.can_run_list == queue
    assert [req.extend_input_len for req in queue] == [5, 5, 5]


def test_a_hit_takes_its_slot_while_matching_and_keeps_it_when_admitted() -> None:
    engine = _warm_engine()
    req = make_req("r", [*SYSTEM, 20, 21])

    _adder(engine).admit_from([req])

    assert req.kv.mamba_pool_idx is not None
    assert (req.extend_input_len, len(req.kv.prefix_indices), req.kv.is_locked) == (2, 12, True)


def test_a_refused_hit_gives_its_slot_back_and_forgets_the_match() -> None:
    engine = _warm_engine()
    before = _free_slots(engine)
    # More output than the pool has room for.
    req = make_req("r", [*SYSTEM, 20, 21], max_new_tokens=1000)

    assert _adder(engine).admit_from([req]) is AddReqResult.NO_TOKEN

    assert req.kv.is_empty
    assert _free_slots(engine) == before
    assert engine.pool_stats()["mamba"].protected == 0
    assert engine.counters.cow_copies == 0
    engine.step()
    assert engine.counters.cow_copies == 1


def test_the_window_returns_its_slots_when_the_loop_stops_early() -> None:
    engine = make_engine()
    queue = [make_req("r0", [1] * 5, 1000), make_req("r1"), make_req("r2")]

    _adder(engine).admit_from(queue)

    assert _free_slots(engine) == 16
    assert engine.pools.mamba_allocator.group_size() == 0


def test_state_slots_are_part_of_the_budget() -> None:
    engine = make_engine(mamba_slots=2)
    queue = [make_req(f"r{i}", [i + 1] * 3) for i in range(4)]
    adder = _adder(engine)

    assert adder.admit_from(queue) is AddReqResult.NO_TOKEN
    assert len(adder.can_run_list) == 2


def test_a_hit_does_not_take_the_slot_that_an_admitted_request_was_promised() -> None:
    """One slot is free and promised to r0; r1 takes it while matching and must give it back."""
    engine = _warm_engine(mamba_slots=3)
    tree_states = engine.pool_stats()["mamba"].evictable
    engine.pools.mamba_allocator.alloc(3 - tree_states - 1, REQ)
    adder = _adder(engine)
    queue = [make_req("r0", [30, 31]), make_req("r1", [*SYSTEM, 20]), make_req("r2", [*SYSTEM, 21])]

    adder.admit_from(queue)

    assert queue[0] in adder.can_run_list
    assert adder.rem_mamba_slots() >= 0
    assert all(req.kv.is_empty for req in queue if req not in adder.can_run_list)


def test_rows_are_part_of_the_budget() -> None:
    engine = make_engine(max_running_requests=2)
    queue = [make_req(f"r{i}", [i + 1] * 3) for i in range(4)]
    adder = _adder(engine)

    assert adder.admit_from(queue) is AddReqResult.NO_TOKEN
    assert len(adder.can_run_list) == 2
    assert adder.refused is None


def test_what_running_requests_may_still_produce_is_kept_free() -> None:
    engine = make_engine(kv_tokens=100)
    running = make_req("running", max_new_tokens=120)
    req = make_req("r", [1] * 30, max_new_tokens=20)

    # 100 - 0.5 x 120 leaves 40, but 50 are needed.
    assert _adder(engine, running=(running,)).admit_from([req]) is AddReqResult.NO_TOKEN
    assert _adder(engine).admit_from([req]) is AddReqResult.CONTINUE


def test_the_first_prompt_passes_whatever_its_length_and_a_second_does_not() -> None:
    engine = make_engine()
    adder = _adder(engine, rem_input=8)
    queue = [make_req("r0", [1] * 20), make_req("r1", [2] * 3)]

    assert adder.admit_from(queue) is AddReqResult.OTHER
    assert adder.can_run_list == queue[:1]


def test_prompts_beyond_the_input_budget_wait_for_the_next_step() -> None:
    engine = make_engine()
    adder = _adder(engine, rem_input=8)
    queue = [make_req("r0", [1] * 4), make_req("r1", [2] * 5)]

    assert adder.admit_from(queue) is AddReqResult.OTHER
    assert adder.can_run_list == queue[:1]
    assert adder.refused is queue[1]


def test_a_long_prompt_is_cut_to_the_chunk_and_only_one_is() -> None:
    engine = make_engine()
    adder = _adder(engine, rem_chunk=16)
    queue = [make_req("r0", [1] * 10), make_req("r1", [2] * 20), make_req("r2", [3] * 4)]

    assert adder.admit_from(queue) is AddReqResult.OTHER
    assert [req.extend_input_len for req in adder.can_run_list] == [10, 6]
    assert adder.new_chunked_req is queue[1]


def test_a_chunked_request_goes_on_with_what_is_left() -> None:
    engine = make_engine()
    req = make_req("r", [1] * 20)
    req.kv.kv_committed_len = 16
    adder = _adder(engine, rem_chunk=16)

    assert adder.add_chunked_req(req)
    assert (req.extend_input_len, adder.new_chunked_req) == (4, None)


def test_a_chunked_request_that_no_longer_fits_says_so() -> None:
    engine = make_engine()
    engine.pools.token_to_kv_pool_allocator.alloc(250, REQ)
    req = make_req("r", [1] * 40)
    req.kv.kv_committed_len = 16

    assert not _adder(engine, rem_chunk=16).add_chunked_req(req)


def test_the_whole_prompt_is_promised_when_only_a_chunk_runs() -> None:
    engine = make_engine(kv_tokens=100)
    adder = _adder(engine, rem_chunk=16)
    queue = [make_req("r0", [1] * 80, 10)]

    adder.admit_from(queue)

    assert adder.rem_total_tokens() == 10


def test_a_prompt_is_cut_where_it_leaves_the_tree_so_that_a_state_is_saved_there() -> None:
    engine = make_engine(chunked_prefill_size=100)
    shared = [i % 40 for i in range(70)]
    engine.generate([[*shared, 41]], SamplingParams(max_new_tokens=1))
    req = make_req("r", [*shared, 42, 43])
    adder = _adder(engine, rem_input=100, rem_chunk=100)

    adder.admit_from([req, make_req("r2", [44, 45])])

    assert (req.mamba_branching_seqlen, req.extend_input_len) == (64, 64)
    assert adder.new_chunked_req is req
    # Other requests use the rest of the step's budget.
    assert len(adder.can_run_list) == 2


def test_prompts_and_outputs_are_promised_in_whole_pages() -> None:
    adder = _adder(make_attention_engine(16, kv_tokens=160), rem_chunk=64)

    # 17 + 4 tokens take 2 pages, 30 + 2 take 2, 30 + 3 take 3 of the 10.
    for prompt_len, outputs, left in ((17, 4, 128), (30, 2, 96)):
        adder.admit_from([make_req("r", [1] * prompt_len, outputs)])
        assert adder.rem_total_tokens() == left
    other = _adder(make_attention_engine(16, kv_tokens=160))
    other.admit_from([make_req("r", [1] * 30, 3)])
    assert other.rem_total_tokens() == 112


def test_a_prompt_is_cut_at_a_page_border() -> None:
    adder = _adder(make_attention_engine(16), rem_chunk=48)
    queue = [make_req("r0", [1] * 10), make_req("r1", [2] * 60), make_req("r2", [3] * 4)]

    adder.admit_from(queue)

    # The first takes one page of the step's budget, which leaves two for the second.
    assert [req.extend_input_len for req in adder.can_run_list] == [10, 32]
    assert adder.new_chunked_req is queue[1]


def test_a_chunk_that_needs_one_more_page_than_there_is_does_not_fit() -> None:
    engine = make_attention_engine(16)
    allocator = engine.pools.token_to_kv_pool_allocator
    allocator.alloc(240, REQ)
    req = make_req("r", [1] * 33)
    req.kv.kv_committed_len = 16

    assert not _adder(engine, rem_chunk=32).add_chunked_req(req)
    assert _adder(engine, rem_chunk=16).add_chunked_req(req)


def test_a_running_request_is_expected_to_use_up_its_page_before_it_takes_another() -> None:
    engine = make_attention_engine(16, kv_tokens=160)
    running = make_req("running", max_new_tokens=40)
    for committed, promised in ((16, 32), (20, 16), (28, 16), (31, 32)):
        running.kv.kv_committed_len = running.kv.kv_allocated_len = committed
        # Half of 40 outputs are expected.
        assert _adder(engine, running=(running,)).rem_total_tokens() == 160 - promised
