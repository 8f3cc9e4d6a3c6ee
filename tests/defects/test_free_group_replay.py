"""sglang#27256 in a whole engine: pages freed by a group are freed again later."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr27256_free_group_replay import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.owners import RESERVED
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import (
    assert_idle_and_clean,
    make_attention_engine,
    make_engine,
    make_window_engine,
    run_to_idle,
)

PARAMS = SamplingParams(max_new_tokens=4, ignore_eos=True)
MAKERS = {"hybrid": make_engine, "attention": make_attention_engine, "windows": make_window_engine}


def serve(engine: Engine, requests: int = 6) -> None:
    """Serve equal prompts: all but the first compute duplicates, which are freed."""
    for index in range(requests):
        engine.submit(f"r{index}", [1, 2, 3, 4, 5], PARAMS)
    run_to_idle(engine)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_healthy_step_gives_its_frees_back_in_one_piece_and_keeps_none(
    maker: str, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = MAKERS[maker](enable_overlap_schedule=overlap)
    allocator = engine.pools.token_to_kv_pool_allocator
    ends: list[int] = []
    healthy = allocator.free_group_end

    def free_group_end() -> None:
        ends.append(allocator.held(RESERVED))
        healthy()

    monkeypatch.setattr(allocator, "free_group_end", free_group_end)

    serve(engine)

    assert max(ends) > 0
    assert allocator.held(RESERVED) == 0
    assert_idle_and_clean(engine)


@pytest.mark.parametrize("maker", MAKERS)
def test_with_the_defect_pages_stand_in_the_free_list_more_than_once(maker: str) -> None:
    changes: dict[str, Any] = {"check_owners": False, "check_fatal": False, "check_level": "off"}
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = MAKERS[maker](**changes)
        serve(engine)
        free = Counter(engine.pools.token_to_kv_pool_allocator.free_pages.tolist())

    assert DEFECT.truth.counts()["tokens_freed_again"] > 0
    assert max(free.values()) > 1
    assert engine.pool_stats()["kv"].residual < 0


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        serve(make_engine(check_owners=False, check_fatal=False, check_level="off"))

    engine = make_engine()
    serve(engine)

    assert_idle_and_clean(engine)
