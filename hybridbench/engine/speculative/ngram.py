"""Prompt lookup: what followed the last few tokens when they occurred before, may follow again.

Source: Saxena 2023, "Prompt Lookup Decoding"; SGLang's algorithm NGRAM and vLLM's "ngram" do it
with a corpus or an index.  Here the request's own text is searched anew each time: there is nothing
to keep, and so nothing that could outlive a request.
"""

from __future__ import annotations

from collections.abc import Sequence

# Of a longer text only the end is searched, so that a step's cost does not grow with it.
SEARCH_TOKENS = 2048


class NgramDrafter:
    """Looks for the longest end of a text, of ``longest`` to ``shortest`` tokens, in the text.

    One equal token is enough unless told otherwise, as for SGLang's NGRAM.
    """

    def __init__(self, longest: int = 8, shortest: int = 1) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-grams of {shortest} to {longest} tokens; 1 <= shortest <= longest")
        self._longest = longest
        self._shortest = shortest

    def propose(self, prompt: Sequence[int], output: Sequence[int], most: int) -> list[int]:
        """What followed the last occurrence of the longest n-gram that occurred before.

        A text that ended in the middle of a repetition is taken to go on repeating.
        """
        text = [*prompt[-SEARCH_TOKENS:], *output[-SEARCH_TOKENS:]]
        text.reverse()
        period = self._period(text)
        return [text[period - 1 - place % period] for place in range(most)] if period else []

    def _period(self, backwards: list[int]) -> int:
        """How many tokens ago the end of the text occurred before; 0 if it never did."""
        last, length = backwards[0], len(backwards)
        best, found = self._shortest - 1, 0
        ago = 0
        while best < self._longest:
            try:
                ago = backwards.index(last, ago + 1)
            except ValueError:
                break
            equal = 1
            while (
                equal < self._longest
                and ago + equal < length
                and backwards[ago + equal] == backwards[equal]
            ):
                equal += 1
            if equal > best:
                best, found = equal, ago
        return found
