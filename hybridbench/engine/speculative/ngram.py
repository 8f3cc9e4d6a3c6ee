"""Prompt lookup: what followed the last few tokens when they occurred before, may follow again.

Source: Saxena 2023, "Prompt Lookup Decoding"; SGLang's algorithm NGRAM and vLLM's "ngram" do it
with a corpus or an index.  Here the request's own text is searched anew each time: there is nothing
to keep, and so nothing that could outlive a request.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_TOKEN_BYTES = 8
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
        text = array("q", prompt[-SEARCH_TOKENS:])
        text.extend(output[-SEARCH_TOKENS:])
        raw = text.tobytes()
        for length in range(min(self._longest, len(text) - 1), self._shortest - 1, -1):
            follows = _last_follower(raw, length)
            if follows:
                period = len(text) - follows
                return [text[follows + place % period] for place in range(most)]
        return []


def _last_follower(raw: bytes, length: int) -> int:
    """Where the text goes on after the last earlier occurrence of its last ``length`` tokens.

    0 if there is none.  An occurrence may overlap the end itself.
    """
    ngram = raw[-length * _TOKEN_BYTES :]
    end = len(raw) - 1
    while (at := raw.rfind(ngram, 0, end)) >= 0:
        if at % _TOKEN_BYTES == 0:
            return at // _TOKEN_BYTES + length
        # The bytes of two neighbours happened to look alike.
        end = at + len(ngram) - 1
    return 0
