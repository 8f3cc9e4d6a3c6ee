"""KV cache events: in order, one entry per block, and nothing is recorded when disabled."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hybridbench.engine.cache import kv_events
from hybridbench.engine.cache.base import InsertParams
from hybridbench.engine.cache.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventRecorder,
)
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.containers import long_containers
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import (
    attention_model,
    make_attention_engine,
    make_engine,
    nano_model,
    run_to_idle,
)


def leaf(*tokens: int, parent: TreeNode | None = None, extra_key: str | None = None) -> TreeNode:
    return TreeNode(1, RadixKey(list(tokens), extra_key), parent=parent)


def stored_hashes(events: list[KvEvent]) -> list[tuple[int, ...]]:
    return [event.block_hashes for event in events if isinstance(event, BlockStored)]


def test_events_come_in_order_and_those_that_go_together_in_one() -> None:
    recorder = KvEventRecorder(enabled=True, page_size=2)
    first, second, third = leaf(1, 2, 3, 4), leaf(5, 6), leaf(7, 8)
    recorder.stored(first)
    recorder.stored(second)
    recorder.removed(first)
    recorder.stored(third)

    one, two, three = (tuple(node.hash_value or ()) for node in (first, second, third))
    assert (len(one), len(two), len(recorder)) == (2, 1, 6)
    events = recorder.take()
    kinds = [BlockStored] * 3 + [BlockRemoved] + [BlockStored]
    assert [type(event) for event in events] == kinds
    assert stored_hashes(events) == [one[:1], one[1:], two, three]
    assert events[3] == BlockRemoved(one)
    assert len(recorder) == 0
    assert recorder.take() == []


@pytest.mark.parametrize("cleared", [False, True])
def test_what_is_dropped_is_as_many_events_as_would_have_been_taken(*, cleared: bool) -> None:
    taking, dropping = (KvEventRecorder(enabled=True, page_size=2) for _ in range(2))
    for recorder in (taking, dropping):
        nodes = [leaf(*range(start, start + 6)) for start in (0, 10, 20)]
        recorder.stored(nodes[0])
        if cleared:
            recorder.cleared()
        recorder.stored(nodes[1])
        recorder.removed(nodes[1])
        recorder.stored(nodes[2])

    assert dropping.drop() == len(taking.take())
    assert (len(dropping), dropping.take(), dropping.drop()) == (0, [], 0)


def test_an_engine_that_tells_nobody_makes_no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "BlockStored", None)
    config = replace(make_attention_engine(1).config, enable_kv_cache_events=True)
    engine = Engine(config, model=attention_model())

    engine.submit("r", list(range(40)), SamplingParams(max_new_tokens=2))
    run_to_idle(engine)

    assert engine.counters.kv_events_published >= 40


def test_clearing_discards_earlier_events() -> None:
    recorder = KvEventRecorder(enabled=True, page_size=1)
    recorder.stored(leaf(1, 2))
    recorder.cleared()
    last = leaf(5)
    recorder.stored(last)

    cleared, stored = recorder.take()
    assert cleared == AllBlocksCleared()
    assert stored_hashes([stored]) == [tuple(last.hash_value or ())]


def test_a_stored_block_comes_with_its_tokens_and_the_block_before_it() -> None:
    recorder = KvEventRecorder(enabled=True, page_size=2)
    upper = leaf(1, 2, 3, 4)
    recorder.stored(upper)
    recorder.stored(leaf(5, 6, parent=upper))

    blocks = [event for event in recorder.take() if isinstance(event, BlockStored)]
    assert [block.token_ids for block in blocks] == [[1, 2], [3, 4], [5, 6]]
    assert {block.block_size for block in blocks} == {2}
    parents = [None, *(block.block_hashes[0] for block in blocks[:-1])]
    assert [block.parent_block_hash for block in blocks] == parents


def test_nothing_is_kept_that_nobody_asked_for() -> None:
    recorder = KvEventRecorder(enabled=False, page_size=1)
    node = leaf(1, 2)
    recorder.stored(node)
    recorder.removed(node)
    recorder.cleared()

    assert node.hash_value is None
    assert len(recorder) == 0
    assert recorder.take() == []


def test_a_block_is_named_by_all_tokens_up_to_its_end_however_nodes_divide_them() -> None:
    recorder = KvEventRecorder(enabled=True, page_size=2)
    whole, upper = leaf(1, 2, 3, 4), leaf(1, 2)
    other_start, other_space = leaf(9, 9, 3, 4), leaf(1, 2, 3, 4, extra_key="tenant")
    for node in (whole, upper, other_start, other_space):
        recorder.stored(node)
    lower = leaf(3, 4, parent=upper)
    recorder.stored(lower)

    assert whole.hash_value == [*(upper.hash_value or ()), *(lower.hash_value or ())]
    assert not set(whole.hash_value or ()) & set(other_start.hash_value or ())
    assert not set(whole.hash_value or ()) & set(other_space.hash_value or ())
    assert min(recorder.log) >= 0


def follow(known: set[int], events: list[KvEvent]) -> None:
    """Apply events to ``known``, as a router would; fail on impossible ones."""
    for event in events:
        match event:
            case BlockStored(block_hashes, parent_block_hash):
                assert not known & set(block_hashes), "stored twice"
                assert parent_block_hash is None or parent_block_hash in known, "hangs in the air"
                known |= set(block_hashes)
            case BlockRemoved(block_hashes):
                assert set(block_hashes) <= known, "removed, but was never stored"
                known -= set(block_hashes)
            case AllBlocksCleared():
                known.clear()


@pytest.mark.parametrize("page_size", [0, 1, 16], ids=["hybrid", "page 1", "page 16"])
def test_who_follows_the_events_knows_the_blocks_of_the_tree_seed_11(page_size: int) -> None:
    known: set[int] = set()
    plain = make_attention_engine(page_size) if page_size else make_engine()
    engine = Engine(
        replace(plain.config, enable_kv_cache_events=True),
        model=attention_model() if page_size else nano_model(),
        on_kv_events=lambda events: follow(known, events),
    )
    rng = random.Random(11)
    texts = [[rng.randrange(48) for _ in range(50)] for _ in range(3)]
    for index in range(60):
        prompt = rng.choice(texts)[: rng.randint(1, 50)]
        prompt += [rng.randrange(48) for _ in range(rng.randint(1, 30))]
        engine.submit(f"r{index}", prompt, SamplingParams(max_new_tokens=rng.randint(1, 6)))
        engine.step()
        if index == 30:
            run_to_idle(engine)
            assert engine.flush_cache()
            engine.step()
            assert known == set()
    run_to_idle(engine)

    tree = engine.pools.tree_cache
    held = [block_hash for node in tree.iter_nodes() for block_hash in node.hash_value or ()]
    assert known == set(held) != set()
    assert len(held) == len(tree.tree_slots().kv_indices) // engine.config.page_size
    assert engine.counters.evict_leaf > 0
    assert engine.counters.node_splits > 0
    assert engine.containers()["kv_events"] == 0
    assert engine.counters.kv_events_published > 0


def test_blocks_whose_events_nobody_drops_count_as_a_container() -> None:
    tree = RadixCache.create_simulated(enable_kv_cache_events=True)
    tree.insert(InsertParams(RadixKey(list(range(120)))))

    before = long_containers(tree)
    tree.kv_events.drop()

    assert before["KvEventRecorder._blocks"] == 120
    assert "KvEventRecorder._blocks" not in long_containers(tree)


def test_a_tree_alone_tells_events_too() -> None:
    tree = RadixCache.create_simulated(enable_kv_cache_events=True)
    tree.insert(InsertParams(RadixKey([0, 1, 2])))

    (leaf,) = tree.iter_nodes()
    assert leaf.hash_value is not None
    assert len(leaf.hash_value) == 3
    first, *_ = leaf.hash_value
    assert tree.take_events()[0] == BlockStored((first,), None, [0], 1)
    assert tree.take_events() == []
