"""sglang#4977 in a whole engine: a retract leaks the page in which the prompt ends."""

from __future__ import annotations

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr4977_retract_page_pad import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import assert_idle_and_clean, make_attention_engine, run_to_idle

PAGE = 4


def storm(prompt_len: int) -> Engine:
    """Serve requests whose answers do not fit at once, so that some are retracted."""
    engine = make_attention_engine(
        PAGE,
        kv_tokens=26 * PAGE,
        max_running_requests=4,
        chunked_prefill_size=32,
        check_fatal=False,
        check_level="idle",
        # Reserve nothing for outputs: a request is admitted if its prompt alone fits.
        new_token_ratio=NewTokenRatio(init=0.0, min=0.0),
    )
    params = SamplingParams(max_new_tokens=30, ignore_eos=True)
    for index in range(4):
        prompt = [index * 6 + i % 6 for i in range(prompt_len)]
        engine.submit(f"r{index}", prompt, params)
        # One at a time: if they came together, the first refusal would end the admission.
        engine.step()
    run_to_idle(engine)
    return engine


@pytest.mark.parametrize("prompt_len", [8, 9, 11])
def test_a_healthy_engine_retracts_and_loses_nothing(prompt_len: int) -> None:
    engine = storm(prompt_len)

    assert engine.counters.retracts > 0
    assert_idle_and_clean(engine)


@pytest.mark.parametrize("prompt_len", [9, 10, 11])
def test_with_the_defect_each_retract_of_an_unaligned_prompt_costs_one_page(
    prompt_len: int,
) -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = storm(prompt_len)

    truth = DEFECT.truth.counts()
    residual = engine.pool_stats()["kv"].residual
    assert truth["retracts"] == engine.counters.retracts > 0
    assert residual == truth["tokens_lost"] == PAGE * truth["unaligned_retracts"] > 0


def test_a_prompt_that_fills_its_pages_loses_nothing_at_its_first_retract() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = storm(8)

    truth = DEFECT.truth.counts()
    # A later retract follows a prefill of prompt and answer, which may end inside a page.
    assert truth["retracts"] > truth.get("unaligned_retracts", 0)
    assert engine.pool_stats()["kv"].residual == truth.get("tokens_lost", 0)


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        storm(9)

    assert_idle_and_clean(storm(9))
