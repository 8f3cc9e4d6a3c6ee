"""sglang#25770 in a whole engine: evicted nodes are freed; with the defect, they pile up."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from hybridbench.defects.defect import Defect
from hybridbench.defects.inject import injected
from hybridbench.defects.pr25770_lru_reference_cycle import (
    _EVICTED,
    DEFECT,
    IN_MAMBA_LISTS,
    IN_SWA_LIST,
    IN_UNIFIED_LISTS,
)
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import (
    assert_nothing_lost,
    chat,
    make_engine,
    make_window_engine,
    tree_nodes,
)

# Nodes of engines that other tests keep alive.
EARLIER: list[TreeNode] = []


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Disable the collector, so that only reference counting frees nodes during a test."""
    gc.collect()
    gc.disable()
    EARLIER.extend(tree_nodes())
    yield
    EARLIER.clear()
    gc.enable()
    gc.collect()


def start_counting() -> None:
    DEFECT.truth.clear()
    _EVICTED.clear()


def stray_nodes(engine: Engine) -> int:
    """Return the number of live tree nodes that are not in the engine's tree."""
    live = len(tree_nodes()) - len(EARLIER)
    _, expected = engine.reference_counted_classes()["TreeNode"]
    return live - expected


def churn(make: Callable[..., Engine] = make_engine, **changes: Any) -> tuple[Engine, int]:
    """Serve chats; return the engine and its number of stray nodes."""
    engine = make(**{"mamba_slots": 10, "kv_tokens": 400, **changes})
    chat(engine, 40)
    return engine, stray_nodes(engine)


# Caches with their own list classes; a slug names the defect that affects only that cache.
WINDOWS = {"kv_tokens": 300, "swa_full_tokens_ratio": 0.5}
CACHES: dict[str, Callable[[], tuple[Engine, int]]] = {
    IN_MAMBA_LISTS.slug: churn,
    IN_SWA_LIST.slug: lambda: churn(make_window_engine, **WINDOWS),
    IN_UNIFIED_LISTS.slug: lambda: churn(cache="unified"),
    "windows of a unified tree": lambda: churn(make_window_engine, cache="unified", **WINDOWS),
}


@pytest.mark.parametrize("cache", CACHES)
def test_each_cache_is_healthy_by_itself(cache: str) -> None:
    engine, strays = CACHES[cache]()

    assert engine.counters.nodes_evicted > 50
    assert strays == 0


@pytest.mark.parametrize(
    "defect", [IN_MAMBA_LISTS, IN_SWA_LIST, IN_UNIFIED_LISTS], ids=lambda d: d.slug
)
@pytest.mark.parametrize("cache", CACHES)
def test_a_list_that_was_forgotten_strands_the_nodes_of_its_own_cache_alone(
    cache: str, defect: Defect
) -> None:
    with injected(defect):
        engine, strays = CACHES[cache]()

    is_its_own = cache == defect.slug or (defect is IN_UNIFIED_LISTS and "unified" in cache)
    assert (strays > 0.5 * engine.counters.nodes_evicted) is is_its_own
    assert is_its_own or strays == 0
    assert_nothing_lost(engine)


def test_a_healthy_engine_leaves_no_node_behind() -> None:
    engine, strays = churn()

    assert engine.counters.evict_internal_state > 20
    assert engine.counters.nodes_evicted > 50
    assert strays == 0


def test_with_the_defect_nearly_every_evicted_node_stays_although_all_pools_balance() -> None:
    with injected(DEFECT):
        engine, strays = churn()

    assert strays > 0.8 * engine.counters.nodes_evicted
    assert_nothing_lost(engine)


def test_the_truth_is_how_many_evicted_nodes_live_on() -> None:
    start_counting()
    with injected(DEFECT):
        engine = make_engine(mamba_slots=10, kv_tokens=400)
        chat(engine, 120)
        strays = stray_nodes(engine)

    truth = DEFECT.truth.counts()
    assert 200 < truth["nodes_evicted"] <= engine.counters.nodes_evicted - 16
    # The truth has not yet classified the last 64.
    assert strays - 64 <= truth["nodes_kept"] <= strays


def test_nodes_that_only_a_full_collection_ends_were_kept() -> None:
    start_counting()
    with injected(DEFECT):
        engine = make_engine(mamba_slots=10, kv_tokens=400)
        chat(engine, 40)
        kept = DEFECT.truth.counts()["nodes_kept"]
        assert engine.flush_cache()
        gc.collect()
        assert stray_nodes(engine) == 0
        chat(engine, 40, seed=4)

    assert DEFECT.truth.counts()["nodes_kept"] > kept


def test_the_truth_of_nodes_that_die_is_that_none_is_kept() -> None:
    start_counting()
    watching = replace(DEFECT, patches=DEFECT.patches[-1:])
    with injected(watching):
        engine = make_engine(mamba_slots=10, kv_tokens=400)
        chat(engine, 120)

    assert engine.counters.nodes_evicted > 200
    counts = DEFECT.truth.counts()
    assert counts["nodes_evicted"] > 200
    assert counts["nodes_kept"] == 0


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        broken, _ = churn()
    del broken
    gc.collect()

    _, strays = churn()

    assert strays == 0


def test_the_defect_changes_no_token() -> None:
    def outputs() -> list[list[int]]:
        engine = make_engine(mamba_slots=10, kv_tokens=400)
        chat(engine, 10)
        prompts = [[i, i + 1, i + 2] for i in range(5)]
        return engine.generate(prompts, SamplingParams(max_new_tokens=4))

    healthy = outputs()
    with injected(DEFECT):
        assert outputs() == healthy
