"""Read token probabilities from answers: how likely each token was, and which others were likely.

The formats are those of OpenAI's completions, of its chats (llama.cpp uses that one for both), and
of SGLang's ``/generate``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

# vLLM names tokens like this on request, because several tokens may have the same text.
_BY_ID: Final = "token_id:"
# The text of every token that is part of a character: these tokens look alike.
BROKEN: Final = "\ufffd"


@dataclass(frozen=True)
class Token:
    """One token of an answer.

    Args:
        name: its text, or ``token_id:N``.
        logprob: natural logarithm of its probability.
        others: logprobs of the most likely tokens at its place, by name; it may be among them.
    """

    name: str
    logprob: float
    others: Mapping[str, float]

    @property
    def gap(self) -> float | None:
        """How much likelier it was than the next best token, in nats; None if unknown."""
        next_best = [value for name, value in self.others.items() if name != self.name]
        return self.logprob - max(next_best) if next_best else None


class _Candidate(msgspec.Struct):
    token: str
    logprob: float


class _OfChat(msgspec.Struct):
    token: str
    logprob: float
    top_logprobs: list[_Candidate] = []


class _Logprobs(msgspec.Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    content: list[_OfChat] | None = None


_DECODER: Final = msgspec.json.Decoder(_Logprobs)
# Of ``/generate``: a token's logprob, id, and text or null.
_Triple = tuple[float | None, int, str | None]
_CHOSEN: Final = msgspec.json.Decoder(list[_Triple])
_LIKELIEST: Final = msgspec.json.Decoder(list[list[_Triple] | None])


def tokens_in(logprobs: bytes) -> list[Token]:
    """Return the tokens of a ``logprobs`` object; none if it has another format."""
    try:
        found = _DECODER.decode(logprobs)
    except msgspec.DecodeError:
        return []
    if found.content is not None:
        return [Token(one.token, one.logprob, _by_text(one.top_logprobs)) for one in found.content]
    names, values = found.tokens or [], found.token_logprobs or []
    tops = found.top_logprobs or []
    if not len(names) == len(values) == len(tops):
        return []
    return [
        Token(name, value, top or {})
        for name, value, top in zip(names, values, tops, strict=True)
        if value is not None
    ]


def generated_tokens(chosen: bytes, likeliest: bytes) -> list[Token]:
    """Return the tokens of an answer of ``/generate``, by id; none if it has another format.

    Args:
        chosen: the answer's ``output_token_logprobs``.
        likeliest: the answer's ``output_top_logprobs``.
    """
    try:
        tokens, tops = _CHOSEN.decode(chosen), _LIKELIEST.decode(likeliest)
    except msgspec.DecodeError:
        return []
    if len(tokens) != len(tops):
        return []
    return [
        Token(f"{_BY_ID}{token}", value, _by_id(top or ()))
        for (value, token, _), top in zip(tokens, tops, strict=True)
        if value is not None
    ]


def _by_id(triples: Sequence[_Triple]) -> dict[str, float]:
    return {f"{_BY_ID}{token}": value for value, token, _ in triples if value is not None}


def _by_text(candidates: Sequence[_Candidate]) -> dict[str, float]:
    """Map texts to logprobs: the largest, of tokens that look alike, such as those without text."""
    found: dict[str, float] = {}
    for one in candidates:
        found[one.token] = max(one.logprob, found.get(one.token, one.logprob))
    return found


@dataclass(frozen=True)
class Difference:
    """The first difference between an answer and the one that its request gets when sent alone.

    Args:
        place: index of the first token that differs.
        margin: how much likelier, in nats, the token of the lone answer was; a lower bound if the
            other token is not among the most likely, or unknown because the answer ends or because
            its text has several readings; None if the server does not say.
    """

    place: int
    margin: float | None


def first_difference(
    answer: str | Sequence[int], alone: str | Sequence[int], tokens: Sequence[Token]
) -> Difference:
    """Find where ``answer`` first differs from ``alone``; ``tokens`` are those of ``alone``.

    Both are texts, or both token ids; they must differ.
    """
    pairs = enumerate(zip(answer, alone, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(answer), len(alone)))
    if place == len(alone):
        return Difference(place, None)  # ``answer`` continues where ``alone`` ends
    if isinstance(answer, str):
        return _in_text(answer, str(alone), tokens, place)
    if [token.name for token in tokens] != [f"{_BY_ID}{one}" for one in alone]:
        return Difference(place, None)
    token = tokens[place]
    if place == len(answer):
        return Difference(place, token.gap)
    return Difference(place, _margin(token, [f"{_BY_ID}{answer[place]}"]))


def _in_text(answer: str, alone: str, tokens: Sequence[Token], place: int) -> Difference:
    """Find the token of ``alone`` with the character ``place``, the first that differs.

    The answers may have parted before it, at tokens that begin with the same text: "abR" is "ab"
    and "R", or "a" and "bR".  So the margin is the smallest of those of all tokens up to this one.
    """
    begun = 0
    margins: list[float | None] = []
    for at, token in enumerate(tokens):
        if not alone.startswith(token.name, begun):
            break  # a partial character has no text of its own
        margins.append(_least_margin(token, answer[begun:]))
        begun += len(token.name)
        if place < begun:
            known = [margin for margin in margins if margin is not None]
            return Difference(at, min(known) if len(known) == len(margins) else None)
    return Difference(place, None)


def _least_margin(token: Token, rest: str) -> float | None:
    """Return how much likelier ``token`` was than any other with which ``rest`` may begin."""
    if BROKEN in token.name:
        return None  # others may look like it
    others = [name for name in token.others if name != token.name]
    if not rest:
        return None if any(BROKEN in name for name in others) else token.gap
    likely = [name for name in others if _may_begin(rest, name)]
    return None if any(BROKEN in name for name in likely) else _margin(token, likely)


def _may_begin(text: str, name: str) -> bool:
    """Return whether the first token of ``text`` may be one with this name."""
    shown, broken, _ = name.partition(BROKEN)
    following = text[len(shown) : len(shown) + 1]
    is_cut = not following or not following.isascii()
    return text.startswith(shown) and (not broken or is_cut)


def _margin(token: Token, served: Sequence[str]) -> float | None:
    """Return how much likelier ``token`` was than the likeliest in ``served``.

    Without one of them among the likeliest, the least likely of these is used in its place.
    """
    known = [token.others[name] for name in served if name in token.others]
    rest = [value for name, value in token.others.items() if name != token.name]
    if not known and not rest:
        return None
    return token.logprob - (max(known) if known else min(rest))
