"""A deterministic drafter for tests, which proposes right and wrong tokens."""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.engine.speculative.ngram import NgramDrafter


class HalfRightDrafter:
    """Always proposes tokens: by n-gram, or made up if none matches; some are spoilt on purpose.

    Short n-grams match often, and their proposals are often right for greedy requests.
    """

    def __init__(self, vocab_size: int) -> None:
        self._ngrams = NgramDrafter(longest=4, shortest=1)
        self._vocab_size = vocab_size

    def propose(self, prompt: Sequence[int], output: Sequence[int], most: int) -> list[int]:
        length = len(prompt) + len(output)
        guesses = self._ngrams.propose(prompt, output, most)
        if not guesses:
            return [(length + place) % self._vocab_size for place in range(1 + length % most)]
        if length % 3 == 0:
            spoilt = length % len(guesses)
            guesses[spoilt] = (guesses[spoilt] + 1) % self._vocab_size
        return guesses
