"""Prompt lookup: propose the tokens that followed an earlier occurrence of the last few tokens.

Source: Saxena 2023, "Prompt Lookup Decoding"; SGLang's algorithm NGRAM and vLLM's "ngram" use a
corpus or an index.  Here each call searches the request's own text anew, so nothing is kept that
could outlive a request.
"""

from __future__ import annotations

from collections.abc import Sequence

# Only the last tokens of prompt and output are searched, to bound a step's cost.
SEARCH_TOKENS = 2048


class NgramDrafter:
    """Searches a text for an earlier occurrence of its last ``shortest`` to ``longest`` tokens.

    By default one matching token is enough, as in SGLang's NGRAM.
    """

    def __init__(self, longest: int = 8, shortest: int = 1) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-grams of {shortest} to {longest} tokens; 1 <= shortest <= longest")
        self._longest = longest
        self._shortest = shortest

    def propose(self, prompt: Sequence[int], output: Sequence[int], most: int) -> list[int]:
        """Return the tokens that followed the latest earlier occurrence of the longest ending.

        If they reach the end of the text, the proposal repeats them.
        """
        text = [*prompt[-SEARCH_TOKENS:], *output[-SEARCH_TOKENS:]]
        text.reverse()
        period = self._period(text)
        return [text[period - 1 - place % period] for place in range(most)] if period else []

    def _period(self, backwards: list[int]) -> int:
        """Return the distance back to the earlier occurrence of the text's end; 0 if none."""
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
