"""sglang#26796 in a whole engine: same tokens and tree, but a tree walk whenever it is idle."""

from __future__ import annotations

import random

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr26796_idle_sanity_walk import DEFECT, TRUTH
from hybridbench.engine.cache.tree import PrefixTree
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import (
    assert_idle_and_clean,
    make_attention_engine,
    make_engine,
    run_to_idle,
)

KINDS = pytest.mark.parametrize("kind", ["attention", "hybrid"])
PARAMS = SamplingParams(max_new_tokens=2, ignore_eos=True)


def engine_of(kind: str) -> Engine:
    if kind == "hybrid":
        return make_engine(kv_tokens=200, mamba_slots=100)
    return make_attention_engine(kv_tokens=200)


def serve(engine: Engine, requests: int) -> None:
    """Serve unique prompts of eight tokens, one after the other."""
    rng = random.Random(5)
    for index in range(requests):
        engine.submit(f"r{index}", [rng.randrange(48) for _ in range(8)], PARAMS)
        run_to_idle(engine)


@KINDS
def test_the_tree_is_walked_whenever_the_engine_is_idle(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[int] = []
    healthy = PrefixTree._check_structure

    def counting(self: PrefixTree) -> list[TreeNode]:
        nodes = healthy(self)
        walked.append(len(nodes))
        return nodes

    monkeypatch.setattr(PrefixTree, "_check_structure", counting)
    TRUTH.clear()
    with injected(DEFECT):
        serve(engine_of(kind), 15)
    with_defect = TRUTH.counts()
    walks = len(walked)
    serve(engine_of(kind), 15)

    assert walks == with_defect["walks"] == 15
    assert walked[14] > walked[0]
    assert len(walked) == walks
    assert TRUTH.counts() == with_defect


@KINDS
def test_its_truth_counts_from_when_the_pool_is_full(kind: str) -> None:
    TRUTH.clear()
    with injected(DEFECT):
        engine = engine_of(kind)
        serve(engine, 10)
        filling = TRUTH.counts()
        serve(engine, 60)
    full = TRUTH.counts()

    assert (filling["steps"], filling["walk_ns"]) == (0, 0)
    assert engine.counters.evict_calls > 0
    assert 0 < full["steps"] < engine.counters.steps
    assert full["walk_ns"] > 0


@KINDS
def test_tokens_and_tree_are_those_of_the_healthy_engine(kind: str) -> None:
    def what_is_left() -> tuple[list[list[int]], list[tuple[int, int]]]:
        engine = engine_of(kind)
        serve(engine, 40)
        outputs = engine.generate([[1, 2, 3], [4, 5, 6]], PARAMS)
        assert_idle_and_clean(engine)
        return outputs, [
            (node.id, len(node.value)) for node in engine.pools.tree_cache.iter_nodes()
        ]

    healthy = what_is_left()
    with injected(DEFECT):
        assert what_is_left() == healthy


def test_an_engine_without_checks_does_not_walk() -> None:
    TRUTH.clear()
    with injected(DEFECT):
        serve(make_attention_engine(kv_tokens=200, check_level="off"), 5)

    assert "walks" not in TRUTH.counts()
