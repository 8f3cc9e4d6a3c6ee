"""Forked children exclude the contents of the pools, but never their ownership records."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import HiCache
from hybridbench.sampling.forked_child import exclude_from_forks, include_in_forks
from hybridbench.worker.pool_memory import pool_ranges
from tests.builders import attention_model, make_attention_engine


def big_engine(host_ratio: float = 0.0) -> Engine:
    """Return an engine whose ownership records exceed 400 KiB, more than the exclusion minimum."""
    config = replace(
        make_attention_engine(1).config, kv_tokens=100_000, hicache=HiCache(ratio=host_ratio)
    )
    return Engine(config, model=attention_model())


def test_the_contents_of_the_kv_pool_are_left_out() -> None:
    engine = big_engine()
    ranges = pool_ranges(engine.pools)

    assert sum(part.size_bytes for part in ranges) >= 100_000 * 16


@pytest.mark.parametrize("host_ratio", [0.0, 1.0])
def test_a_child_can_flush_the_cache_although_pools_are_not_in_it(host_ratio: float) -> None:
    engine = big_engine(host_ratio)
    # More positions than fit into one memory page that a record may share with other objects.
    prompts = [[first, *range(1, 45)] for first in range(45)]
    engine.generate(prompts, SamplingParams(max_new_tokens=2))
    assert engine.pool_stats()["kv"].evictable > 1100
    excluded = exclude_from_forks(pool_ranges(engine.pools))
    assert excluded
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if engine.flush_cache() else 1)
        _, status = os.waitpid(pid, 0)
    finally:
        include_in_forks(excluded)

    assert os.waitstatus_to_exitcode(status) == 0
