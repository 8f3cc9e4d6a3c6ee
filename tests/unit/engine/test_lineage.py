"""Which requests computed the KV and states that a request reuses, whatever held them since."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hybridbench.engine.cache.base import EvictParams
from hybridbench.engine.engine import Engine
from hybridbench.engine.lineage import MOST_WRITERS, Passed
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import HiCache
from tests.builders import (
    make_attention_engine,
    make_engine,
    make_tracking_engine,
    make_window_engine,
    run_to_idle,
)

PARAMS = SamplingParams(max_new_tokens=20, ignore_eos=True)
# Longer than a window, and than the length at which states are saved.
PROMPT = list(range(1, 30))

ENGINES = {
    "radix": make_attention_engine,
    "radix, pages": lambda: make_attention_engine(4),
    "states": make_engine,
    "tracked states": make_tracking_engine,
    "tracked states, overlap": lambda: make_tracking_engine(enable_overlap_schedule=True),
    "windows": make_window_engine,
    "unified states": lambda: make_engine(cache="unified"),
    "unified tracked states": lambda: make_tracking_engine(cache="unified"),
    "unified windows": lambda: make_window_engine(cache="unified"),
}


def served(engine: Engine, rid: str, prompt: Sequence[int], session: str | None = None) -> Req:
    engine.submit(rid, list(prompt), PARAMS, session_id=session)
    [req] = [event.req for event in run_to_idle(engine) if event.req is not None]
    return req


def numbers(req: Req) -> list[int]:
    return [number for number, _ in req.went_on_from]


def text_of(req: Req, more: int = 0) -> list[int]:
    return [*req.origin_input_ids, *req.output_ids, *range(30, 30 + more)]


@pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES)
def test_a_chat_goes_on_from_its_turns_the_last_first(make: Callable[[], Engine]) -> None:
    engine = make()
    first = served(engine, "first", PROMPT)
    second = served(engine, "second", text_of(first, 3))
    third = served(engine, "third", text_of(second, 3))

    assert numbers(first) == []
    assert numbers(second) == [first.arrival]
    assert numbers(third) == [second.arrival, first.arrival]


def test_half_of_what_a_request_computed_is_its_own_too() -> None:
    engine = make_attention_engine()
    whole = served(engine, "whole", PROMPT)

    branch = served(engine, "branch", [*PROMPT[:10], *range(30, 40)])
    other = served(engine, "other", [*PROMPT[:10], *range(40, 45)])

    assert numbers(branch) == numbers(other) == [whole.arrival]


@pytest.mark.parametrize("cache", ["radix", "unified"])
def test_a_state_that_comes_to_a_tombstone_is_the_request_s_that_computed_it(cache: str) -> None:
    engine = make_engine(cache=cache)
    first = served(engine, "first", PROMPT)
    # Below, internal nodes lose their states; the longer prefix keeps their KV in the tree.
    longer = served(engine, "longer", [*PROMPT, *range(30, 40)])
    tree = engine.pools.tree_cache
    for node in tree.iter_nodes():
        if node.children and node.mamba_value is not None:
            drop_state(engine, node.id)
    again = served(engine, "again", PROMPT)

    heir = served(engine, "heir", [*PROMPT, 45, 46])

    assert longer.arrival not in numbers(heir)
    # The tree keeps its existing KV, and the request that recomputed it reads that.
    assert numbers(again) == [first.arrival]
    assert numbers(heir) == [again.arrival, first.arrival]


@pytest.mark.parametrize("make", [make_engine, lambda: make_engine(cache="unified")])
def test_kv_above_a_new_leaf_is_of_whoever_brought_it_first(make: Callable[[], Engine]) -> None:
    engine = make()
    first = served(engine, "first", PROMPT)
    # It shares tokens with the first, but there is no state: it computes everything, and reads the
    # KV already in the tree.
    second = served(engine, "second", [*PROMPT[:10], *range(30, 40)])

    assert second.cached_tokens == 0
    assert numbers(second) == [first.arrival]


def drop_state(engine: Engine, node_id: int) -> None:
    """Evict states, oldest first, until the given node has lost its state."""
    tree = engine.pools.tree_cache
    while any(n.id == node_id and n.mamba_value is not None for n in tree.iter_nodes()):
        tree.evict(EvictParams(mamba_num=1))


def test_a_turn_of_a_session_goes_on_from_the_one_before_it() -> None:
    engine = make_engine()
    engine.open_session("s")
    first = served(engine, "first", PROMPT, "s")
    second = served(engine, "second", [30, 31], "s")

    third = served(engine, "third", [32, 33], "s")

    assert numbers(second) == [first.arrival]
    assert numbers(third) == [second.arrival, first.arrival]


def test_a_turn_that_is_pushed_back_goes_on_from_itself_and_is_no_ancestor_of_its_own() -> None:
    engine = make_engine()
    engine.open_session("s")
    first = served(engine, "first", PROMPT, "s")
    engine.submit("second", [30, 31], PARAMS, session_id="s")
    for _ in range(3):
        engine.step()
    engine.scheduler._retract_one()
    [second] = [event.req for event in run_to_idle(engine) if event.req is not None]

    assert second.writers == (
        (second.arrival, second.passed),
        (first.arrival, first.passed),
    )
    assert Passed.RETRACTED & second.passed


def test_what_is_known_of_a_long_chat_is_bounded() -> None:
    engine = make_attention_engine(max_context_len=1024, kv_tokens=2048)
    turn = served(engine, "0", PROMPT[:4])
    for number in range(1, MOST_WRITERS + 5):
        turn = served(engine, str(number), text_of(turn, 1))

    assert numbers(turn) == [turn.arrival - back for back in range(1, MOST_WRITERS + 1)]
    assert max(len(n.writers) for n in engine.pools.tree_cache.iter_nodes()) == MOST_WRITERS


def test_an_ancestor_is_known_by_what_it_had_been_through_when_it_handed_over() -> None:
    engine = make_engine(chunked_prefill_size=8)
    chunked = served(engine, "chunked", PROMPT)

    heir = served(engine, "heir", text_of(chunked, 2))

    assert Passed.CHUNKED & heir.went_on_from[0][1]
    assert not Passed.CHUNKED & heir.passed


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_attention_engine(hicache=HiCache(ratio=2.0)),
        lambda: make_engine(cache="unified", hicache=HiCache(ratio=2.0)),
        lambda: make_window_engine(cache="unified", hicache=HiCache(ratio=2.0)),
    ],
    ids=["radix", "states", "windows"],
)
def test_what_was_loaded_from_the_host_is_known_to_all_who_read_it(
    make: Callable[[], Engine],
) -> None:
    engine = make()
    first = served(engine, "first", PROMPT)
    engine.pools.tree_cache.evict(EvictParams(num_tokens=256, mamba_num=99, swa_num_tokens=256))
    loading = served(engine, "loading", text_of(first, 3))

    heir = served(engine, "heir", text_of(first, 4))

    assert Passed.LOADED_BACK & loading.passed
    assert not Passed.LOADED_BACK & heir.passed
    assert Passed.LOADED_BACK & heir.went_on_from[-1][1]
