"""Prompt lookup: tokens that followed an earlier occurrence of the last few may follow again.

Source: Saxena 2023, "Prompt Lookup Decoding"; SGLang's algorithm NGRAM and vLLM's "ngram" do it
with a corpus or an index.  Here the request's own text is searched anew each time: nothing is
kept, so nothing can outlive a request.
"""

from __future__ import annotations

from collections.abc import Sequence

# Only the end of a longer text is searched, so that a step's cost is bounded.
SEARCH_TOKENS = 2048


class NgramDrafter:
    """Searches a text for its own ending, of ``longest`` to ``shortest`` tokens.

    By default one equal token is enough, as for SGLang's NGRAM.
    """

    def __init__(self, longest: int = 8, shortest: int = 1) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-grams of {shortest} to {longest} tokens; 1 <= shortest <= longest")
        self._longest = longest
        self._shortest = shortest

    def propose(self, prompt: Sequence[int], output: Sequence[int], most: int) -> list[int]:
        """The tokens that followed the last earlier occurrence of the longest matching ending.

        A text that ends in the middle of a repetition is assumed to continue it.
        """
        text = [*prompt[-SEARCH_TOKENS:], *output[-SEARCH_TOKENS:]]
        text.reverse()
        period = self._period(text)
        return [text[period - 1 - place % period] for place in range(most)] if period else []

    def _period(self, backwards: list[int]) -> int:
        """Distance in tokens to the earlier occurrence of the text's end; 0 if there is none."""
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
