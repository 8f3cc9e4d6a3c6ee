"""sglang#27586 in a whole engine: freed window pages are freed again with their full pages."""

from __future__ import annotations

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr27586_swa_stale_mapping import _STALE, DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.owners import OwnershipError
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import assert_idle_and_clean, make_window_engine, run_to_idle


@pytest.fixture(autouse=True)
def counts_of_this_test() -> None:
    DEFECT.truth.clear()
    _STALE.clear()


def chats(answer_tokens: int, **changes: bool) -> Engine:
    """Serve distinct prompts in an engine with windows of a few tokens."""
    engine = make_window_engine(check_fatal=False, **changes)
    params = SamplingParams(max_new_tokens=answer_tokens, ignore_eos=True)
    for index in range(6):
        engine.submit(f"r{index}", [index, *range(1, 6)], params)
        run_to_idle(engine)
    return engine


def test_a_healthy_engine_gives_back_behind_its_windows_and_balances() -> None:
    engine = chats(answer_tokens=24)

    assert engine.counters.swa_releases > 0
    assert_idle_and_clean(engine)


def test_with_the_defect_the_window_pool_has_more_than_there_is() -> None:
    with injected(DEFECT):
        engine = chats(answer_tokens=24, check_owners=False)
        engine.flush_cache()
        stats = engine.pool_stats()["swa"]

    assert DEFECT.truth.counts()["pages_freed_twice"] > 0
    assert stats.residual < 0
    assert engine.pool_stats()["kv"].residual == 0


def test_allocators_that_keep_account_refuse_a_page_that_went_before() -> None:
    with injected(DEFECT), pytest.raises(OwnershipError):
        chats(answer_tokens=24).flush_cache()


def test_nothing_is_freed_twice_where_no_window_moves_on() -> None:
    with injected(DEFECT):
        engine = chats(answer_tokens=1)

    assert engine.counters.swa_releases == 0
    assert_idle_and_clean(engine)
