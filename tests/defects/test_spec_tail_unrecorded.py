"""sglang#31616 in a whole engine: each rejected draft tail leaks a page."""

from __future__ import annotations

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr31616_spec_tail_unrecorded import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from tests.builders import (
    NANO_MODEL,
    assert_idle_and_clean,
    make_attention_engine,
    make_engine,
    run_to_idle,
)
from tests.drafters import HalfRightDrafter

PAGE = 16


def drafting_engine(page_size: int = PAGE) -> Engine:
    return make_attention_engine(
        page_size,
        kv_tokens=2048,
        drafter=HalfRightDrafter(NANO_MODEL.vocab_size),
        check_level="idle",
        check_fatal=False,
    )


def serve(engine: Engine, count: int = 6) -> None:
    params = SamplingParams(max_new_tokens=40, ignore_eos=True, temperature=1.0, seed=1)
    for index in range(count):
        engine.submit(f"r{index}", [index, index + 1, index + 2], params)
    run_to_idle(engine)


def test_a_healthy_engine_loses_no_page_to_wrong_guesses() -> None:
    engine = drafting_engine()

    serve(engine)

    assert engine.counters.draft_tails > 5
    assert_idle_and_clean(engine)


@pytest.mark.parametrize("page_size", [1, PAGE])
def test_with_the_defect_exactly_the_pages_behind_wrong_guesses_are_lost(page_size: int) -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = drafting_engine(page_size)
        serve(engine)
        residual = engine.pool_stats()["kv"].residual

    truth = DEFECT.truth.counts()
    assert truth["draft_tails"] == engine.counters.draft_tails > 5
    assert residual == truth["tokens_lost"] > 0
    if page_size == PAGE:
        # A chain is shorter than a page, so it extends into at most one more page.
        assert truth["tokens_lost"] == PAGE * truth["draft_tails"]
    [violation] = [v for v in engine.violations if v.kind is ViolationKind.RESIDUAL]
    assert (violation.pool, violation.count) == ("kv", residual)


def test_without_guesses_the_defect_does_nothing() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = make_engine()
        serve(engine)

    assert DEFECT.truth.counts() == {}
    assert_idle_and_clean(engine)


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        serve(drafting_engine(), 2)

    engine = drafting_engine()
    serve(engine)

    assert_idle_and_clean(engine)
