"""Random traffic for engines: shared prefixes, conversation turns, aborts at every stage.

A program drives one engine and audits it as it goes.  At the end it compares all tokens with
an oracle, an engine that reuses nothing (ChunkCache, ample pools).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import (
    NANO_MODEL,
    Audits,
    assert_idle_and_clean,
    assert_nothing_lost,
    make_engine,
)
from tests.digest_model import RARE_TOKEN

SYSTEM_PROMPTS = 3
MOST_LIVE = 14
MOST_TEXTS = 12


@dataclass
class Sent:
    """A submitted request and its result."""

    prompt: list[int]
    params: SamplingParams
    output: list[int] = field(default_factory=list)
    end: EventKind | None = None


class EngineProgram:
    """Random actions on one engine; all randomness comes from ``rng``."""

    def __init__(
        self,
        engine: Engine,
        rng: random.Random,
        *,
        longest_prompt: int = 60,
        longest_output: int = 10,
        stretch: int = 1,
        make_oracle: Callable[..., Engine] = make_engine,
    ) -> None:
        self.engine = engine
        self.rng = rng
        self.sent: dict[str, Sent] = {}
        self.live: list[str] = []
        self.disconnected: set[str] = set()
        self._audits = Audits()
        self._longest_prompt = longest_prompt
        self._longest_output = longest_output
        # Multiplies the lengths by which prompts begin and grow, for large pages.
        self._stretch = stretch
        self._make_oracle = make_oracle
        # Each request draws one of these; if empty, no request has a priority.
        self.priorities: tuple[int | None, ...] = ()
        # Whole texts (prompt and output) that later prompts continue or share a prefix with.
        longest = max(8, longest_prompt - 36)
        system_lens = [rng.randint(4 * stretch, longest) for _ in range(SYSTEM_PROMPTS)]
        self._texts = [self._tokens(length) for length in system_lens]

    def submit(self) -> str:
        """Submit a new prompt, one that continues a text, or one that diverges from it."""
        rng = self.rng
        # Mostly recent texts, whose states are still in the tree.
        text = rng.choice(self._texts[-3:] if rng.random() < 0.6 else self._texts)
        kind = rng.random()
        if kind < 0.15:
            prompt = self._tokens(rng.randint(1, 30 * self._stretch))
        elif kind < 0.6:
            prompt = text + self._tokens(rng.randint(1, 8 * self._stretch))
        elif kind < 0.9:
            prompt = text[: rng.randint(1, len(text))] + self._tokens(rng.randint(1, 6))
        else:
            prompt = list(text)
        return self.submit_prompt(
            prompt[: self._longest_prompt], rng.randint(1, self._longest_output)
        )

    def submit_prompt(self, prompt: list[int], max_new_tokens: int) -> str:
        return self._send(prompt, prompt, max_new_tokens)

    def _send(
        self, prompt: list[int], new: list[int], max_new_tokens: int, session_id: str | None = None
    ) -> str:
        """Submit ``new``; together with the session's earlier tokens it makes ``prompt``."""
        rid = f"r{len(self.sent)}"
        params = self._params(max_new_tokens)
        self.sent[rid] = Sent(prompt, params)
        self.live.append(rid)
        priority = self.rng.choice(self.priorities) if self.priorities else None
        self.engine.submit(rid, new, params, session_id=session_id, priority=priority)
        return rid

    def _params(self, max_new_tokens: int) -> SamplingParams:
        greedy = self.rng.random() < 0.75
        return SamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=0.0 if greedy else 1.0,
            top_k=-1 if greedy else 8,
            seed=len(self.sent),
            stop_token_ids=(RARE_TOKEN,),
        )

    def abort(self) -> None:
        """Abort a random live request, or disconnect its client."""
        if not self.live:
            return
        rid = self.rng.choice(self.live)
        if self.rng.random() < 0.5:
            self.engine.abort(rid)
        else:
            self.live.remove(rid)
            self.disconnected.add(rid)
            self.engine.disconnect(rid)

    def step(self) -> None:
        """Run one step, then check every slot of every pool if that is due."""
        for event in self.engine.step():
            self._note(event)
        if self._audits.are_due():
            assert_nothing_lost(self.engine)

    def finish(self) -> None:
        """Run until all requests have ended; nothing may still be held."""
        for _ in range(5000):
            if not self.engine.has_work:
                break
            self.step()
        assert self.live == [], "a request never ended"
        assert_idle_and_clean(self.engine)
        assert self.engine.containers()["front_end"] == 0

    def run(
        self,
        actions: int,
        *,
        abort_share: float = 0.05,
        flush_share: float = 0.004,
        flood_share: float = 0.01,
    ) -> None:
        """Perform ``actions`` random actions, then ``finish``."""
        rng = self.rng
        for _ in range(actions):
            choice = rng.random()
            if choice < abort_share:
                self.abort()
            elif choice < abort_share + flush_share:
                self.engine.flush_cache()
            elif choice < abort_share + flush_share + flood_share:
                while len(self.live) < MOST_LIVE:
                    self.submit()
            elif choice < 0.4 and len(self.live) < MOST_LIVE:
                self.submit()
            else:
                self.step()
        self.finish()

    def compare_with_oracle(self) -> None:
        """Check that an engine without reuse or pressure gives the same tokens for each prompt."""
        assert self.wrong_answers() == []

    def wrong_answers(self) -> list[tuple[str, list[int]]]:
        """Return id and prompt of each request whose tokens differ from the oracle's."""
        wrong: list[tuple[str, list[int]]] = []
        oracle = self._make_oracle(
            cache="chunk", max_running_requests=64, kv_tokens=16384, mamba_slots=64,
            chunked_prefill_size=None, max_prefill_tokens=4096, check_level="off",
        )  # fmt: skip
        for rid, sent in self.sent.items():
            oracle.submit(rid, sent.prompt, sent.params)
        while oracle.has_work:
            for event in oracle.step():
                if event.kind is not EventKind.FINISHED:
                    continue
                sent = self.sent[event.rid]
                expected = list(event.output_ids)
                if sent.end is not EventKind.FINISHED:
                    expected = expected[: len(sent.output)]
                if sent.output != expected:
                    wrong.append((event.rid, sent.prompt))
        return wrong

    def _note(self, event: EngineEvent) -> None:
        assert event.rid not in self.disconnected, "an event for a client that has left"
        if not event.ends_request:
            return
        sent = self.sent[event.rid]
        assert sent.end is None, "a request ended twice"
        sent.end, sent.output = event.kind, list(event.output_ids)
        self.live.remove(event.rid)
        if event.kind is EventKind.FINISHED:
            whole = (sent.prompt + sent.output)[: self._longest_prompt - 2]
            self._texts.append(whole)
            if len(self._texts) > MOST_TEXTS:
                del self._texts[SYSTEM_PROMPTS]

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(NANO_MODEL.vocab_size) for _ in range(count)]


def run_against_oracle(
    programs: Iterable[tuple[str, EngineProgram]],
    actions: int,
    check: Callable[[EngineProgram], None] = lambda _: None,
) -> Counter[str]:
    """Run each program, compare its tokens, call ``check``; return the sum of all counters.

    A failure has the program's name in a note.
    """
    seen: Counter[str] = Counter()
    for name, program in programs:
        try:
            program.run(actions)
            program.compare_with_oracle()
            check(program)
        except BaseException as error:
            error.add_note(name)
            raise
        seen.update(program.engine.counters.as_dict())
    return seen
