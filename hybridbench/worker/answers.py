"""Select finished requests whose answers a reference will recompute.

Only counts are kept here: a selected answer goes to the parent at once, which keeps the sample.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Final

from hybridbench.engine.lineage import Passed
from hybridbench.engine.req import Req
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.records.answers import Trait, pack_tokens, pack_traits
from hybridbench.records.messages import AnswerTotals, FinishedAnswer


class AnswerSample:
    """A seeded reservoir with ``size`` places for requests that reused something, and as many for
    those that did not.

    In each of the two, every finished request is kept with equal probability.  Requests with a
    payload are excluded, and so are those with filters (top_k, top_p), whose cut-offs rounding may
    cross.

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
        """Offer a finished request to the sample."""
        if not self._size:
            return
        if req.payload:
            self._finished["payload"] += 1
            return
        params = req.sampling_params
        if params.is_filtered:
            self._finished["filtered"] += 1
            return
        self._finished["comparable"] += 1
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
                    arrival=req.arrival,
                    ancestors=[(n, _inheritable(passed)) for n, passed in req.writers[1:]],
                    temperature=0.0 if params.is_greedy else params.temperature,
                    seed=params.seed,
                )
            )

    def take(self) -> list[FinishedAnswer]:
        """Return what was selected since the last call."""
        drawn, self._drawn = self._drawn, []
        return drawn

    def totals(self) -> AnswerTotals | None:
        """Return the counts of all finished requests; None if no answers are wanted."""
        return AnswerTotals(dict(self._finished)) if self._size else None


_TRAITS: Final[Mapping[int, Trait]] = {
    Passed.LOADED_BACK: Trait.LOADED_BACK,
    Passed.CHUNKED: Trait.SEVERAL_CHUNKS,
    Passed.RETRACTED: Trait.RETRACTED,
    Passed.REFUSED: Trait.REFUSED,
    Passed.ENDED_ADMISSION: Trait.ENDED_ADMISSION,
    Passed.ENDED_AFTER_HIT: Trait.ENDED_AFTER_HIT,
    Passed.GUESSED: Trait.GUESSES,
    Passed.BESIDE_OTHERS: Trait.BESIDE_OTHERS,
}


def traits_of(req: Req, config: EngineConfig) -> list[Trait]:
    """Return the traits of a finished request."""
    if req.cached_tokens == 0:
        reused = Trait.REUSED_NOTHING
    elif req.passed & Passed.IN_SESSION:
        reused = Trait.REUSED_SESSION
    else:
        reused = Trait.REUSED_TRACKED if config.tracks_states else Trait.REUSED_TREE
    return [reused, *_passed(req.passed)]


@cache
def _passed(passed: int) -> tuple[Trait, ...]:
    return tuple(trait for flag, trait in _TRAITS.items() if flag & passed)


@cache
def _inheritable(passed: int) -> int:
    return pack_traits(_passed(passed))
