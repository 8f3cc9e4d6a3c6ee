"""What a forked child does without: the pools' contents, never the books about them."""

from __future__ import annotations

import os
from dataclasses import replace

from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.runs.pool_memory import pool_ranges
from hybridbench.sampling.fork_exclusion import exclude_from_forks, include_in_forks
from tests.builders import make_engine, nano_model


def big_engine() -> Engine:
    """Books of 400 KiB and more, larger than what is worth a mapping of its own."""
    return Engine(replace(make_engine().config, kv_tokens=100_000), model=nano_model())


def test_the_contents_of_the_kv_pool_are_left_out() -> None:
    engine = big_engine()
    ranges = pool_ranges(engine.pools)

    assert sum(part.size_bytes for part in ranges) >= 100_000 * 16


def test_a_child_can_flush_the_cache_although_pools_are_not_in_it() -> None:
    engine = big_engine()
    engine.generate([list(range(1, 40)), list(range(3, 45))], SamplingParams(max_new_tokens=2))
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
