"""What a drafter is, and which there are by name.

A new one is a file beside ``ngram.py`` and a line in ``DRAFTERS``: drafts are verified by the model
whatever they come from, so that a drafter can cost time but never change a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hybridbench.engine.speculative.ngram import NgramDrafter


class Drafter(Protocol):
    """Guesses how texts go on; keeps nothing about a request between two calls."""

    def propose(self, prompt: Sequence[int], output: Sequence[int], most: int) -> list[int]:
        """At most ``most`` (1 or more) tokens that may follow ``prompt + output``; [] for no idea.

        Every token must be one of the model's vocabulary.
        """


DRAFTERS: Mapping[str, Callable[[], Drafter]] = {"NGRAM": NgramDrafter}
