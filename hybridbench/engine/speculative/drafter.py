"""The drafter interface and the available drafters by name.

To add a drafter, add a file beside ``ngram.py`` and an entry in ``DRAFTERS``.  The model verifies
drafts from any source, so a drafter can cost time but never change a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hybridbench.engine.speculative.ngram import NgramDrafter


class Drafter(Protocol):
    """Predicts how texts continue; keeps no request's data between calls."""

    def propose(self, prompt: Sequence[int], output: Sequence[int], most: int) -> list[int]:
        """Return at most ``most`` (1 or more) tokens that may follow ``prompt + output``.

        Every token must be in the model's vocabulary; [] proposes none.
        """


DRAFTERS: Mapping[str, Callable[[], Drafter]] = {"NGRAM": NgramDrafter}
