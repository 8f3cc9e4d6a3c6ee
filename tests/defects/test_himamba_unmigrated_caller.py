"""sglang#27256 in a whole engine: host loads query the state pool, which has no free list."""

from __future__ import annotations

from itertools import cycle

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr27256_himamba_unmigrated_caller import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import HiCache
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle
from tests.host_transfers import ChosenTransfers

PARAMS = SamplingParams(max_new_tokens=4, ignore_eos=True)


def return_to_the_first(cache: str = "radix") -> Engine:
    """Serve more prompts than the device holds, then extend the first, which only the host has."""
    # Waiting is counted in steps, and on a busy machine a real copier thread may not run in time.
    transfers = ChosenTransfers(cycle((0, 2, 1)))
    engine = make_engine(cache=cache, kv_tokens=80, hicache=HiCache(ratio=4.0), transfers=transfers)
    prompts = [[index, *range(1, 20)] for index in range(8)]
    for prompt in (*prompts, [*prompts[0], 30, 31]):
        engine.submit(f"r{engine.counters.requests_submitted}", prompt, PARAMS)
        run_to_idle(engine)
    return engine


@pytest.mark.parametrize("cache", ["radix", "unified"])
def test_a_healthy_tree_loads_back(cache: str) -> None:
    engine = return_to_the_first(cache)

    assert engine.counters.host_load_backs > 0
    assert_idle_and_clean(engine)


def test_with_the_defect_the_first_load_ends_the_engine() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT), pytest.raises(AttributeError, match=DEFECT.signature.says):
        return_to_the_first()

    assert DEFECT.truth.counts() == {"calls": 1}


def test_the_unified_tree_had_been_migrated() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        assert return_to_the_first("unified").counters.host_load_backs > 0

    assert DEFECT.truth.counts() == {}
