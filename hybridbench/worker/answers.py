"""Draws finished greedy requests whose answers are to be computed anew by a reference.

Nothing is kept here but counts: an answer that is drawn goes to the parent at once, which keeps the
sample.
"""

from __future__ import annotations

import random
from collections import Counter

from hybridbench.engine.req import Req
from hybridbench.engine_config import EngineConfig
from hybridbench.records.answers import Trait, pack_tokens
from hybridbench.records.messages import AnswerTotals, FinishedAnswer


class AnswerSample:
    """A seeded reservoir of ``size`` places for requests that reused something, and as many for
    those that did not: each of the greedy requests that have finished is in it with equal chance.

    Source: Vitter 1985, algorithm R.
    """

    def __init__(self, size: int, config: EngineConfig) -> None:
        self._size = size
        self._config = config
        self._random = random.Random(config.seed)
        self._offered: Counter[bool] = Counter()
        self._finished: Counter[str] = Counter()
        self._drawn: list[FinishedAnswer] = []

    def offer(self, req: Req) -> None:
        """``req`` has finished."""
        if not self._size:
            return
        if req.payload:
            self._finished["payload"] += 1
            return
        if not req.sampling_params.is_greedy:
            self._finished["sampled"] += 1
            return
        self._finished["greedy"] += 1
        reused = req.cached_tokens > 0
        offered = self._offered[reused]
        self._offered[reused] += 1
        place = offered if offered < self._size else self._random.randrange(offered + 1)
        if place < self._size:
            self._drawn.append(
                FinishedAnswer(
                    rid=req.rid,
                    reused=reused,
                    place=place,
                    prompt=pack_tokens(req.origin_input_ids),
                    output=pack_tokens(req.output_ids),
                    traits=list(map(str, traits_of(req, self._config))),
                    cached_tokens=req.cached_tokens,
                )
            )

    def take(self) -> list[FinishedAnswer]:
        """What was drawn since the last call."""
        drawn, self._drawn = self._drawn, []
        return drawn

    def totals(self) -> AnswerTotals | None:
        """All that have finished; None where no answers are wanted."""
        return AnswerTotals(dict(self._finished)) if self._size else None


def traits_of(req: Req, config: EngineConfig) -> list[Trait]:
    """What a finished request has been through."""
    path = req.path
    reused = req.cached_tokens > 0
    from_tree = reused and not path.in_session
    held = {
        Trait.REUSED_NOTHING: not reused,
        Trait.REUSED_TREE: from_tree and not config.tracks_states,
        Trait.REUSED_TRACKED: from_tree and config.tracks_states,
        Trait.REUSED_SESSION: reused and path.in_session,
        Trait.LOADED_BACK: path.loaded_back,
        Trait.SEVERAL_CHUNKS: path.chunks > 0,
        Trait.RETRACTED: path.retracts > 0,
        Trait.REFUSED: path.refusals > 0,
        Trait.ENDED_ADMISSION: path.ended_admission,
        # Only a hit takes a state slot while the decision is still open.
        Trait.ENDED_AFTER_HIT: path.ended_admission and reused,
        Trait.GUESSES: path.guesses > 0,
        Trait.BESIDE_OTHERS: path.others > 0,
    }
    return [trait for trait, holds in held.items() if holds]
