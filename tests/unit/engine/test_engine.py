from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hybridbench.engine import (
    DuplicateRequestError,
    Engine,
    EngineConfig,
    EngineEvent,
    EventKind,
    SamplingParams,
)
from hybridbench.engine.cache.lru import LIST_ENDS
from hybridbench.engine.memory.owners import REQ
from hybridbench.engine.models.export import write_checkpoint
from hybridbench.engine.models.weights import RandomWeights
from hybridbench.engine.scheduler.audit import ViolationKind
from hybridbench.engine.scheduler.invariants import InvariantError
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import CacheKind, HiCache
from hybridbench.foundation.errors import ConfigError
from tests.builders import (
    ATTENTION_MODEL,
    NANO_ENGINE,
    assert_idle_and_clean,
    attention_model,
    make_attention_engine,
    make_engine,
    run_to_idle,
)
from tests.host_transfers import ChosenTransfers

PARAMS = SamplingParams(max_new_tokens=4)


def _kinds(events: list[EngineEvent], rid: str) -> list[EventKind]:
    return [event.kind for event in events if event.rid == rid]


def _one(events: list[EngineEvent], kind: EventKind) -> EngineEvent:
    [event] = [event for event in events if event.kind is kind]
    return event


def test_a_request_is_admitted_gives_a_first_token_and_finishes() -> None:
    engine = make_engine()
    engine.submit("a", [1, 2, 3], PARAMS)

    events = run_to_idle(engine)

    assert _kinds(events, "a") == [EventKind.ADMITTED, EventKind.FIRST_TOKEN, EventKind.FINISHED]
    finished = _one(events, EventKind.FINISHED)
    assert (len(finished.output_ids), finished.reason, finished.prompt_tokens) == (4, "length", 3)
    assert_idle_and_clean(engine)


def test_times_are_those_of_the_injected_clock() -> None:
    clock = FakeClock()
    engine = make_engine(clock=clock)
    engine.submit("a", [1, 2, 3], PARAMS)
    events: list[EngineEvent] = []

    for pause_s in (0.5, 0.1, 0.2, 0.3):
        clock.advance(pause_s)
        events += engine.step()

    assert _one(events, EventKind.FIRST_TOKEN).ttft_s == pytest.approx(0.5)
    finished = _one(events, EventKind.FINISHED)
    assert finished.ttft_s == pytest.approx(0.5)
    assert finished.itl_s == pytest.approx((0.1, 0.2, 0.3))


def test_a_live_id_is_refused_and_an_old_one_is_free_again() -> None:
    engine = make_engine()
    engine.submit("a", [1, 2, 3], PARAMS)

    with pytest.raises(DuplicateRequestError, match="request id 'a' belongs to"):
        engine.submit("a", [4, 5], PARAMS)

    run_to_idle(engine)
    engine.submit("a", [4, 5], PARAMS)
    assert _kinds(run_to_idle(engine), "a")[-1] is EventKind.FINISHED
    assert engine.counters.requests_submitted == 2


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ([], "the prompt is empty"),
        ([1, 48], "a token outside 0 to 47"),
        ([-1], "a token outside 0 to 47"),
        ([1] * 125, "125 prompt tokens and max_new_tokens 4 are more than the 128"),
    ],
)
def test_what_cannot_be_served_is_rejected_with_one_sentence(
    prompt: list[int], sentence: str
) -> None:
    engine = make_engine()

    engine.submit("a", prompt, PARAMS)

    had_work = engine.has_work
    rejected = _one(engine.step(), EventKind.REJECTED)
    assert sentence in rejected.reason
    assert engine.counters.requests_rejected == 1
    assert (had_work, engine.has_work) == (True, False)
    assert engine.containers()["front_end"] == 0


def test_a_prompt_that_is_too_long_is_truncated_if_asked() -> None:
    engine = make_engine(max_context_len=20)

    engine.submit("a", list(range(40)), PARAMS, truncate=True)
    engine.submit("b", list(range(16)), PARAMS)
    events = run_to_idle(engine)

    outputs = {e.rid: e for e in events if e.kind is EventKind.FINISHED}
    assert outputs["a"].prompt_tokens == 16
    assert outputs["a"].output_ids == outputs["b"].output_ids
    assert engine.counters.requests_truncated == 1


def test_truncation_cannot_help_when_the_output_alone_is_too_long() -> None:
    engine = make_engine(max_context_len=20)

    engine.submit("a", [1, 2], SamplingParams(max_new_tokens=30), truncate=True)

    assert _one(engine.step(), EventKind.REJECTED).reason
    assert engine.counters.requests_truncated == 0


def test_the_longest_request_that_is_accepted_runs_to_its_end() -> None:
    engine = make_engine(kv_tokens=60, mamba_slots=2, max_running_requests=2)
    longest = engine.config.max_request_len

    [output] = engine.generate([[1] * (longest - 9)], SamplingParams(max_new_tokens=9))

    assert len(output) == 9
    assert_idle_and_clean(engine)


def test_an_abort_is_told_by_the_next_step_with_the_tokens_so_far() -> None:
    engine = make_engine()
    engine.submit("a", [1, 2, 3], SamplingParams(max_new_tokens=50))
    engine.step()
    engine.step()

    assert engine.abort("a")
    aborted = _one(engine.step(), EventKind.ABORTED)

    assert (len(aborted.output_ids), aborted.reason) == (2, "aborted by its client")
    assert engine.counters.abort_decode == 1
    assert not engine.abort("a")
    assert_idle_and_clean(engine)


def test_a_client_that_left_is_forgotten_at_once_and_hears_nothing() -> None:
    engine = make_engine()
    engine.submit("a", [1, 2, 3], SamplingParams(max_new_tokens=50))
    engine.step()

    assert engine.disconnect("a")
    assert engine.containers()["front_end"] == 0
    engine.submit("a", [4, 5], PARAMS)
    events = run_to_idle(engine)

    assert _kinds(events, "a") == [EventKind.ADMITTED, EventKind.FIRST_TOKEN, EventKind.FINISHED]
    assert engine.counters.disconnects == 1
    assert not engine.disconnect("a")


def test_a_stop_token_ends_a_request_early() -> None:
    [tokens] = make_engine().generate([[1, 2, 3]], SamplingParams(max_new_tokens=8))
    engine = make_engine()
    engine.submit("a", [1, 2, 3], SamplingParams(max_new_tokens=8, stop_token_ids=(tokens[2],)))

    finished = _one(run_to_idle(engine), EventKind.FINISHED)

    assert list(finished.output_ids) == tokens[: tokens.index(tokens[2]) + 1]
    assert finished.reason == "stop"
    assert engine.counters.finish_stop == 1


def test_generate_returns_outputs_in_the_order_of_the_prompts() -> None:
    prompts = [[1, 2, 3], [4, 5], list(range(30))]

    together = make_engine().generate(prompts, PARAMS)

    alone = [make_engine().generate([prompt], PARAMS)[0] for prompt in prompts]
    assert together == alone


def test_generate_says_which_prompt_cannot_be_served() -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        make_engine().generate([[]], PARAMS)


def test_a_second_turn_reuses_the_first() -> None:
    engine = make_engine()
    [output] = engine.generate([[1, 2, 3, 4, 5]], PARAMS)

    engine.submit("b", [1, 2, 3, 4, 5, *output, 9, 9], PARAMS)
    events = run_to_idle(engine)

    # The last output token was never computed, so its KV is not in the tree.
    assert _one(events, EventKind.ADMITTED).cached_tokens == 5 + len(output) - 1
    assert (engine.counters.prefix_hits, engine.counters.prefix_hit_tokens) == (1, 8)
    assert engine.counters.cow_copies == 1


def test_a_prompt_that_leaves_another_half_way_makes_later_ones_hit() -> None:
    """The tree gets a state near the fork, at a multiple of the model's chunk of 64 tokens."""
    engine = make_engine(chunked_prefill_size=100)
    shared = [i % 40 for i in range(70)]

    for tail in ([41, 41], [42, 42], [43, 43]):
        engine.generate([shared + tail], PARAMS)

    assert engine.counters.prefix_hits == 1
    assert engine.counters.prefix_hit_tokens == 64
    without = make_engine(chunked_prefill_size=100, cache_branching_states=False)
    for tail in ([41, 41], [42, 42], [43, 43]):
        without.generate([shared + tail], PARAMS)
    assert without.counters.prefix_hits == 0


def test_a_flush_empties_the_tree_and_needs_an_idle_engine() -> None:
    engine = make_engine()
    engine.submit("a", [1, 2, 3], PARAMS)
    assert not engine.flush_cache()
    run_to_idle(engine)

    assert engine.flush_cache()

    stats = engine.pool_stats()
    assert (stats["kv"].available, stats["mamba"].available) == (256, 16)
    assert engine.counters.flushes == 1
    assert_idle_and_clean(engine)


def test_a_flush_does_not_bring_back_what_was_lost() -> None:
    engine = make_engine(check_level="off")
    engine.pools.mamba_allocator.alloc(1, REQ)

    engine.flush_cache()

    assert engine.pool_stats()["mamba"].residual == 1


def test_live_nodes_are_as_many_as_the_tree_says() -> None:
    engine = make_engine()
    engine.generate([[1, 2, 3], [1, 2, 4], [5]], PARAMS)

    _, expected = engine.reference_counted_classes()["TreeNode"]

    nodes = 1 + 2 * LIST_ENDS + engine.containers()["tree_nodes"]
    assert expected == nodes


def test_a_table_that_nobody_declared_is_counted_by_class_and_attribute() -> None:
    engine = make_engine()
    names = set(engine.containers())

    vars(engine.scheduler)["_seen"] = dict.fromkeys(range(100))

    assert engine.containers()["Scheduler._seen"] == 100
    assert set(engine.containers()) == {*names, "Scheduler._seen"}


def test_lists_in_a_short_table_count_with_their_entries() -> None:
    engine = make_engine()
    names = set(engine.containers())

    vars(engine.scheduler)["_by_reason"] = {"length": list(range(60)), "stop": [*range(40)]}

    assert engine.containers()["Scheduler._by_reason"] == 102
    assert set(engine.containers()) == {*names, "Scheduler._by_reason"}


def test_a_queue_that_is_counted_under_its_own_name_is_not_counted_again() -> None:
    engine = make_engine()
    names = set(engine.containers())

    for index in range(100):
        engine.submit(f"r{index}", [1, 2, 3], PARAMS)

    assert engine.containers()["waiting_queue"] == engine.containers()["front_end"] == 100
    assert set(engine.containers()) == names


def test_a_broken_law_is_counted_or_fatal_as_configured() -> None:
    lenient = make_engine(check_fatal=False)
    lenient.pools.mamba_allocator.alloc(1, REQ)
    lenient.generate([[1, 2, 3]], PARAMS)
    assert lenient.counters.invariant_violations > 0
    assert lenient.violations[0].kind is ViolationKind.RESIDUAL
    assert (lenient.violations[0].count, len(lenient.violations[0].slots)) == (1, 1)

    fatal = make_engine(check_fatal=True)
    fatal.pools.mamba_allocator.alloc(1, REQ)
    with pytest.raises(InvariantError, match="mamba pool: 1 unaccounted"):
        fatal.generate([[1, 2, 3]], PARAMS)


def test_without_owner_checks_a_slot_freed_twice_shows_in_the_sums_and_nobody_raises() -> None:
    prompts = [[1, 2, 3, index] for index in range(6)]
    engine = make_engine(check_owners=False, check_fatal=False)
    assert engine.generate(prompts, PARAMS) == make_engine().generate(prompts, PARAMS)
    assert engine.pools.objections() == {"kv": 0, "mamba": 0, "req": 0}
    assert_idle_and_clean(engine)

    slot = engine.pools.mamba_allocator.free_slots[0]
    engine.pools.mamba_allocator.free([slot])
    engine.generate([[9, 9, 9]], PARAMS)

    assert engine.pools.objections()["mamba"] == 1
    assert engine.pool_stats()["mamba"].residual == -1
    assert any(v.pool == "mamba" and v.count == -1 for v in engine.violations)


def test_a_pool_that_lost_its_slots_ends_the_request_instead_of_waiting_for_ever() -> None:
    engine = make_engine(mamba_slots=2, check_level="off")
    engine.pools.mamba_allocator.alloc(2, REQ)

    engine.submit("a", [1, 2, 3], PARAMS)
    aborted = _one(run_to_idle(engine, most_steps=5), EventKind.ABORTED)

    assert "does not fit the idle engine" in aborted.reason
    assert engine.counters.abort_no_room == 1


def test_it_becomes_steady_once_pools_evict_and_nothing_new_comes() -> None:
    engine = make_engine(check_level="off", mamba_slots=8)
    for i in range(40):
        engine.generate([[i, j, 1] for j in range(8)], SamplingParams(max_new_tokens=2))
        if engine.is_steady:
            break

    assert engine.steady_reason == "evicting"
    assert engine.counters.finishes >= 200


def test_a_checkpoint_without_recurrent_layers_runs_with_pages(tmp_path: Path) -> None:
    write_checkpoint(
        ATTENTION_MODEL, RandomWeights(ATTENTION_MODEL, 1, torch.device("cpu")), tmp_path,
        torch.float64,
    )  # fmt: skip
    prompts = [[1, 2, 3], list(range(40))]
    config = replace(NANO_ENGINE, model=str(tmp_path), page_size=16, chunked_prefill_size=16)

    outputs = Engine(config).generate(prompts, PARAMS)

    assert outputs == make_engine(model=attention_model()).generate(prompts, PARAMS)


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_without_recurrent_layers_no_message_speaks_of_states(page_size: int) -> None:
    engine = make_attention_engine(page_size, check_level="off")
    allocator = engine.pools.token_to_kv_pool_allocator
    allocator.alloc(allocator.available_size(), REQ)

    engine.submit("a", [1, 2, 3], PARAMS)
    aborted = _one(run_to_idle(engine, most_steps=5), EventKind.ABORTED)

    assert aborted.reason == (
        "does not fit the idle engine: it needs 7 KV tokens and 1 row; there is room for 0 and 6"
    )
    assert {violation.pool for violation in engine.check_invariants(idle=True)} == {"kv"}


def test_the_warm_up_needs_no_states() -> None:
    engine = make_attention_engine(16, check_level="off")
    for i in range(40):
        engine.generate([[i, j] * 16 for j in range(8)], SamplingParams(max_new_tokens=2))

    assert engine.steady_reason == "evicting"
    assert_idle_and_clean(engine)


@pytest.mark.parametrize("make", [make_attention_engine, make_engine], ids=["kv", "states"])
@pytest.mark.parametrize("cache", ["radix", "unified"])
@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_every_removed_node_counts_as_a_removal(
    make: Callable[..., Engine], cache: CacheKind, ratio: float
) -> None:
    hicache, transfers = HiCache(ratio=ratio), ChosenTransfers()
    sizes = {"kv_tokens": 100, "max_context_len": 90}
    engine = make(cache=cache, hicache=hicache, transfers=transfers, **sizes)
    for first in range(14):
        engine.submit(f"{first}", [first + 1] * 30, PARAMS)
        run_to_idle(engine)

    assert (engine.counters.host_evictions > 0) == (ratio > 0)
    assert engine.removals() == (engine.counters.nodes_evicted, 14)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (EngineConfig(model="qwen3-next-tyni"), "did you mean qwen3-next-tiny"),
        (EngineConfig(dtype="float16"), "dtype is 'float16'"),
        (EngineConfig(device="toaster"), "device is 'toaster'"),
        (EngineConfig(device="mps"), "device is 'mps'; write cpu or cuda"),
        (EngineConfig(page_size=16), "page_size is 16; set it to 1"),
        (EngineConfig(page_size=64, cache="chunk"), "page_size is 64; set it to 1"),
        (
            EngineConfig(mamba_slots=2, mamba_scheduler_strategy="extra_buffer"),
            "mamba_slots is 2; one request that hits needs 3",
        ),
        (
            EngineConfig(
                mamba_slots=3, mamba_scheduler_strategy="extra_buffer", enable_overlap_schedule=True
            ),
            "mamba_slots is 3; one request that hits needs 4",
        ),
        (EngineConfig(max_context_len=300_000, kv_tokens=400_000), "set it to at most 262144"),
    ],
)
def test_an_engine_that_cannot_be_built_says_why(config: EngineConfig, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Engine(config)

    assert sentence in str(refused.value)
