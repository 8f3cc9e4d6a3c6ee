"""Switches of the field that are known here but not served."""

from __future__ import annotations

import pytest
import torch

from hybridbench.engine.cache.base import CacheInitParams, InsertParams
from hybridbench.engine.cache.kv_events import BlockStored
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.pages import TokenToKVPoolAllocator
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool, ReqToTokenPool
from hybridbench.engine.memory.unserved import refuse_unserved


def test_only_the_switches_that_are_on_are_named() -> None:
    refuse_unserved(first=False, second=False)
    with pytest.raises(ValueError, match=r"^second: not supported by this engine"):
        refuse_unserved(first=False, second=True)


def test_pools_refuse_what_they_would_have_to_ignore() -> None:
    with pytest.raises(ValueError, match="enable_memory_saver"):
        ReqToTokenPool(1, 1, "cpu", True)
    with pytest.raises(ValueError, match="start_layer"):
        HybridReqToTokenPool(1, 1, 1, "cpu", start_layer=3)
    with pytest.raises(ValueError, match="enable_kvcache_transpose"):
        HybridLinearKVPool(
            4, torch.float32, 1, 1, 1, [0], "cpu", None, enable_kvcache_transpose=True
        )


@pytest.mark.parametrize("switch", ["is_eagle", "enable_metrics"])
def test_caches_refuse_what_they_would_have_to_ignore(switch: str) -> None:
    rows, kv = ReqToTokenPool(1, 1), TokenToKVPoolAllocator(1, torch.float32, "cpu")

    with pytest.raises(ValueError, match=switch):
        CacheInitParams(rows, kv, 1, **{switch: True})  # type: ignore[arg-type]


def test_a_tree_alone_tells_events_too() -> None:
    tree = RadixCache.create_simulated(enable_kv_cache_events=True)
    tree.insert(InsertParams(RadixKey([0, 1, 2])))

    (leaf,) = tree.iter_nodes()
    assert leaf.hash_value is not None
    assert len(leaf.hash_value) == 3
    first, *_ = leaf.hash_value
    assert tree.take_events()[0] == BlockStored((first,), None, [0], 1)
    assert tree.take_events() == []
