"""Every combination of cache, page, state strategy, overlap, speculation and sessions, one by one.

The other laws test one or two mechanisms closely; this one leaves out no combination.  A legal
combination gives the tokens of an engine that reuses nothing, with every slot held exactly once
after every step and all slots free at the end.  The engine refuses an illegal one in one sentence.
In short runs, a cell uses the digest model (tests/digest_model.py), except for cells with overlap
and drafts: a real model's kernels fill their chains and track buffers.  In long runs
(``make test-deep``) every cell has a real model.  Real models compute in float64, where rounding
that depends on a batch's shape changes no token.  ``make test`` runs enough cells to cover every
combination of two properties.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest

from hybridbench.engine.cache.chunk_cache import ChunkCache
from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.unified_radix_cache import UnifiedRadixCache
from hybridbench.engine.engine import Engine
from hybridbench.engine.model_runner import LanguageModel
from hybridbench.engine.sessions.streaming_session import StreamingSession
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import NewTokenRatio
from hybridbench.foundation.errors import ConfigError
from tests.builders import (
    NANO_MODEL,
    assert_idle_and_clean,
    attention_model,
    make_engine,
    nano_model,
)
from tests.digest_model import DigestModel
from tests.drafters import HalfRightDrafter
from tests.engine_programs import EngineProgram
from tests.session_programs import SessionProgram

# Assumes that requests stop early, so that decoding sometimes runs out of room.
DARING = NewTokenRatio(init=0.3, min=0.0, decay_steps=1)
# Setting, model and class of each prefix cache.
CACHES = {
    "RadixCache": ("radix", attention_model, RadixCache),
    "MambaRadixCache": ("radix", nano_model, MambaRadixCache),
    "UnifiedRadixCache": ("unified", nano_model, UnifiedRadixCache),
    "UnifiedRadixCache, attention only": ("unified", attention_model, UnifiedRadixCache),
    "ChunkCache": ("chunk", nano_model, ChunkCache),
    "ChunkCache, attention only": ("chunk", attention_model, ChunkCache),
}
PAGE_SIZES = (1, 16, 64)
STRATEGIES = ("no_buffer", "extra_buffer", "extra_buffer_lazy")
# Longest prompt, longest output and stretch, by page size.
LENGTHS = {1: (60, 14, 1), 16: (110, 24, 2), 64: (200, 70, 4)}
# Number of KV pages, by page size; barely sufficient for six rows.
PAGES = {1: 190, 16: 22, 64: 16}
# By whether there are sessions: a session is restored only after a few turns.
ACTIONS = {False: 40, True: 80}
MOST_PROGRAMS = 4


@dataclass(frozen=True)
class Cell:
    """One combination."""

    cache: str
    page_size: int
    strategy: str
    overlap: bool
    drafts: bool
    sessions: bool

    def __str__(self) -> str:
        flags = {"overlap": self.overlap, "drafts": self.drafts, "sessions": self.sessions}
        ahead = [name for name, on in flags.items() if on]
        return ", ".join([self.cache, f"page {self.page_size}", self.strategy, *ahead])

    @property
    def recurrent(self) -> bool:
        """Whether the model has states."""
        return CACHES[self.cache][1] is nano_model

    @property
    def refusal(self) -> str | None:
        """The error with which the engine refuses this combination; None if it is legal."""
        if self.recurrent and self.page_size > 1 and self.strategy == "no_buffer":
            return f"page_size is {self.page_size}; set it to 1 or mamba_scheduler_strategy"
        return None

    @property
    def events(self) -> list[str]:
        """Events that always occur within a few programs.

        With drafts or a recurrent model, overlapped steps leave a discarded position after every
        turn; with larger pages it seldom begins a page, so that there is no tail to free.
        """
        ahead = self.overlap and (self.drafts or self.recurrent)
        wanted = {
            "surplus_steps": self.overlap,
            "drafts_accepted": self.drafts,
            "session_restores": self.sessions,
            "session_tail_frees": self.sessions and ahead and self.page_size == 1,
        }
        return [event for event, is_wanted in wanted.items() if is_wanted]


def first_legal_strategy(cell: Cell) -> str:
    """Return the first legal strategy among cells that differ from ``cell`` only in it."""
    return next(s for s in STRATEGIES if replace(cell, strategy=s).refusal is None)


CELLS = [
    Cell(*choice)
    for choice in product(
        CACHES, PAGE_SIZES, STRATEGIES, (False, True), (False, True), (False, True)
    )
]
LEGAL = [cell for cell in CELLS if cell.refusal is None]
# Only hybrid trees hold states; for other caches all strategies are the same.
DISTINCT = [
    cell
    for cell in LEGAL
    if cell.cache in ("MambaRadixCache", "UnifiedRadixCache")
    or cell.strategy == first_legal_strategy(cell)
]


def pairs_of(cell: Cell) -> set[tuple[tuple[int, Any], ...]]:
    """Return all combinations of two properties of the cell."""
    return set(combinations(enumerate(astuple(cell)), 2))


def covering(cells: list[Cell]) -> list[Cell]:
    """Choose, greedily, few of ``cells`` that together have all pairs of all cells."""
    pairs = {cell: pairs_of(cell) for cell in cells}
    missing = set().union(*pairs.values())
    few: list[Cell] = []
    while missing:
        few.append(max(cells, key=lambda cell: len(pairs[cell] & missing)))
        missing -= pairs[few[-1]]
    return few


FEW = covering(DISTINCT)
SHORT = [
    pytest.param(cell, id=str(cell), marks=() if cell in FEW else pytest.mark.slow)
    for cell in DISTINCT
]
# Long runs of every legal cell; distinct engines run several programs.
LONG = [(cell, seed) for cell in LEGAL for seed in range(6000, 6005 if cell in DISTINCT else 6001)]


def model_of(cell: Cell, *, is_real: bool) -> LanguageModel:
    model = CACHES[cell.cache][1]()
    return model if is_real else DigestModel(model.config)


def build(cell: Cell, clock: FakeClock, model: LanguageModel) -> Engine:
    kind = CACHES[cell.cache][0]
    grid = max(16, cell.page_size)
    changes: dict[str, Any] = {
        "cache": kind,
        "page_size": cell.page_size,
        "kv_tokens": PAGES[cell.page_size] * cell.page_size,
        "max_context_len": 352,
        "max_prefill_tokens": 256,
        "chunked_prefill_size": 2 * grid,
        "mamba_slots": 20 if cell.strategy == "no_buffer" else 26,
        "mamba_scheduler_strategy": cell.strategy,
        "mamba_cache_chunk_size": grid,
        "mamba_track_interval": grid,
        "enable_overlap_schedule": cell.overlap,
        "speculative_num_draft_tokens": 4,
        "new_token_ratio": DARING,
    }
    drafter = HalfRightDrafter(NANO_MODEL.vocab_size) if cell.drafts else None
    return make_engine(clock=clock, model=model, drafter=drafter, **changes)


def make_program(cell: Cell, seed: int, model: LanguageModel) -> EngineProgram:
    clock = FakeClock()
    engine = build(cell, clock, model)
    longest_prompt, longest_output, stretch = LENGTHS[cell.page_size]
    oracle = partial(make_engine, model=model, max_context_len=352)
    if cell.sessions:
        program = SessionProgram(engine, random.Random(seed), clock, longest_prompt)
        program._make_oracle = oracle
        return program
    return EngineProgram(
        engine,
        random.Random(seed),
        longest_prompt=longest_prompt,
        longest_output=longest_output,
        stretch=stretch,
        make_oracle=oracle,
    )


def assert_law(cell: Cell, seed: int, actions: int, *, is_real: bool) -> None:
    """Check the law on one program, and on more while an event of ``cell`` has not occurred."""
    seen: Counter[str] = Counter()
    for number in range(MOST_PROGRAMS):
        if seen["finishes"] > 5 and all(seen[event] > 0 for event in cell.events):
            break
        program = make_program(cell, seed + number, model_of(cell, is_real=is_real))
        cache = program.engine.pools.tree_cache
        inner = cache.inner if isinstance(cache, StreamingSession) else cache
        assert type(inner) is CACHES[cell.cache][2]
        try:
            program.run(actions)
            program.compare_with_oracle()
            assert program.engine.flush_cache()
            assert_idle_and_clean(program.engine)
        except BaseException as error:
            error.add_note(f"{cell}, seed {seed + number}")
            raise
        seen.update(program.engine.counters.as_dict())
    assert seen["finishes"] > 5, "the programs served hardly anybody"
    for event in cell.events:
        assert seen[event] > 0, (event, seen)


@pytest.mark.parametrize("cell", SHORT)
def test_a_legal_cell_gives_the_tokens_of_the_engine_without_reuse(cell: Cell) -> None:
    is_ahead_of_guesses = cell.overlap and cell.drafts

    assert_law(cell, CELLS.index(cell), ACTIONS[cell.sessions], is_real=is_ahead_of_guesses)


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "seed"), LONG, ids=str)
def test_a_legal_cell_keeps_to_it_for_long(cell: Cell, seed: int) -> None:
    assert_law(cell, seed, 1200, is_real=True)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.refusal], ids=str)
def test_an_illegal_cell_is_refused_with_its_reason(cell: Cell) -> None:
    assert cell.refusal is not None

    with pytest.raises(ConfigError, match=cell.refusal):
        build(cell, FakeClock(), model_of(cell, is_real=True))
