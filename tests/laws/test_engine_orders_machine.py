"""Traffic chosen by Hypothesis over engines whose steps overlap or verify draft tokens.

The machine of test_engine_equals_no_reuse.py, and that of test_engine_attention_only.py for pages.
Only the steps differ, so everything that holds there must hold here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.builders import (
    NANO_MODEL,
    make_attention_engine,
    make_engine,
)
from tests.drafters import HalfRightDrafter
from tests.engine_programs import EngineProgram
from tests.laws.engine_machine import EngineMachine, engine_examples
from tests.laws.test_engine_equals_no_reuse import SQUEEZES

ORDERS = ("overlap", "drafts")
PAGES = (1, 4, 16)


def order_settings(order: str, chain: int) -> dict[str, Any]:
    """Return settings for overlapped steps, or for draft chains of ``chain`` tokens."""
    if order == "overlap":
        return {"enable_overlap_schedule": True}
    drafter = HalfRightDrafter(NANO_MODEL.vocab_size)
    return {"drafter": drafter, "speculative_num_draft_tokens": chain}


class OrdersMachine(EngineMachine):
    """Prompts over few tokens, so that they share prefixes and repeat; aborts at any moment."""

    def _build(self, program: EngineProgram) -> None:
        self.program = program

    @rule(texts=st.lists(st.integers(0, 3), min_size=1, max_size=24), more=st.integers(1, 12))
    def submit_few_tokens(self, texts: list[int], more: int) -> None:
        assert self.program is not None
        if len(self.program.live) < 12:
            self.program.submit_prompt(texts, more)


class HybridOrdersMachine(OrdersMachine):
    @initialize(
        name=st.sampled_from(sorted(SQUEEZES)),
        order=st.sampled_from(ORDERS),
        chain=st.integers(2, 7),
        rng=st.randoms(use_true_random=False),
    )
    def build(self, name: str, order: str, chain: int, rng: Any) -> None:
        engine = make_engine(**{**SQUEEZES[name], **order_settings(order, chain)})
        self._build(EngineProgram(engine, rng))


class PagedOrdersMachine(OrdersMachine):
    @initialize(
        page_size=st.sampled_from(PAGES),
        order=st.sampled_from(ORDERS),
        chain=st.integers(2, 20),
        rng=st.randoms(use_true_random=False),
    )
    def build(self, page_size: int, order: str, chain: int, rng: Any) -> None:
        sizes = {"kv_tokens": 16 * max(page_size, 12), "chunked_prefill_size": 2 * page_size + 16}
        sizes["chunked_prefill_size"] -= sizes["chunked_prefill_size"] % page_size
        engine = make_attention_engine(page_size, **sizes, **order_settings(order, chain))
        oracle = partial(make_attention_engine, page_size)
        self._build(EngineProgram(engine, rng, make_oracle=oracle))


TestHybridOrdersMachine = HybridOrdersMachine.TestCase
TestHybridOrdersMachine.settings = engine_examples(0.5, steps=30)
TestPagedOrdersMachine = PagedOrdersMachine.TestCase
TestPagedOrdersMachine.settings = engine_examples(0.5, steps=30)
