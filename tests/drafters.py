"""Drafters for tests: some guesses right, some wrong, the same each time they are asked."""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.engine.speculative.ngram import NgramDrafter


class HalfRightDrafter:
    """Always guesses: what a text repeats, or else something; and spoils a guess now and then.

    Short n-grams make many guesses, of which those of greedy requests are often right.
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
