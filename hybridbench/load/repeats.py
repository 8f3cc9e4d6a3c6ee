"""Request answers again, to check whether they equal those that the server gives without reuse.

Each greedy request of a sample is sent again at rest, without the server's cache, several at a
time.  An equal answer has been computed twice.  A different one decides nothing, because a batch
rounds differently than a request alone.  So its request is sent three more times, alone; if these
answers agree, both earlier answers are compared with them.

The effect of rounding on this server is measured as well: some requests with equal answers are sent
alone, then again with their own prefix in the cache, and the logprobs of equal tokens are compared.
These are also sent without streaming, because all other requests of a run may be streamed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from secrets import token_hex
from statistics import median
from typing import Final, Literal

import msgspec

from hybridbench.load.interfaces import Answer
from hybridbench.load.logprobs import BROKEN, Token, first_difference
from hybridbench.records.load import Differing, Repeated
from hybridbench.records.messages import Submit
from hybridbench.workload.actions import ServerSubmit

# Most requests kept with their answers from one idle point to the next, and most tokens in them.
_PLACES: Final = 256
_TOKENS_MOST: Final = 1 << 19
_AT_ONCE: Final = 16
_ALONE: Final = 3
# Answers per idle point for which the effect of rounding is measured; more until this many tokens
# were measured in the run, because answers may be short.
_MEASURED: Final = 12
_MEASURED_TOKENS: Final = 2000
# Most differences that are kept individually.
_KEPT: Final = 300
_GAPS_KEPT: Final = 4096

# Reasons for the end of an answer that are not the model's choice; "" if the reason is missing.
_AT_LIMIT: Final = frozenset({"length", ""})

# Sends a request with logprobs that shares cached content only with requests of the same key; if
# the last argument is true, without streaming.  Returns None if no answer came.
Ask = Callable[[Submit, str, bool], Awaitable[Answer | None]]


@dataclass(frozen=True)
class _Served:
    """A request, its answer, and what was unusual about the requests in flight beside it."""

    request: Submit
    answer: Answer
    beside: frozenset[str] = frozenset()


class Repeats:
    """Owns the sample and the results of comparing it.

    Args:
        seed: of the draws.
        left_out: why no answer can be compared; empty if they can.
        exact: whether the server was started so that batching changes no answer.
        both_ways: whether answers are streamed, and would have the same text if they were not.
    """

    def __init__(
        self, seed: int, left_out: str = "", *, exact: bool = False, both_ways: bool = False
    ) -> None:
        self._exact = exact
        self._both_ways = both_ways
        self._random = random.Random(seed)
        self._left_out = left_out
        self._sample: list[_Served] = []
        self._drawn_from = 0
        self._tokens = 0
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._served: list[Differing] = []
        self._control: list[Differing] = []
        self._beside: Counter[str] = Counter()
        self._met = 0
        # Served answers with a different one, to be sent alone as time permits.
        self._undecided: list[tuple[_Served, Answer]] = []
        self._gaps: list[float] = []
        self._noise = (0.0, 0)  # the largest difference, and the number of tokens compared

    def saw(self, request: Submit, answer: Answer, beside: frozenset[str] = frozenset()) -> None:
        """Consider an answered request for the sample.

        ``beside`` has the unusual properties of the requests that were in flight with it.
        """
        reason = self._left_out or _unfit(request)
        if reason:
            self._reasons[reason] += 1
            return
        self._drawn_from += 1
        size = len(request.input_ids) + answer.tokens
        if len(self._sample) < _PLACES:
            if self._tokens + size > _TOKENS_MOST:
                self._reasons["not-drawn"] += 1
                return
            self._sample.append(_Served(request, answer, beside))
        else:
            self._reasons["not-drawn"] += 1
            place = self._random.randrange(self._drawn_from)
            if place >= _PLACES or self._tokens + size > _TOKENS_MOST:
                return
            old = self._sample[place]
            self._tokens -= len(old.request.input_ids) + old.answer.tokens
            self._sample[place] = _Served(request, answer, beside)
        self._tokens += size

    async def compare(self, ask: Ask, budget_s: float) -> None:
        """Compute the sample again, for about ``budget_s`` seconds, and begin a new one.

        A difference that time leaves undecided is the next call's first.
        """
        sample, self._sample = self._sample, []
        self._drawn_from = self._tokens = 0
        self._random.shuffle(sample)
        end_s = _now_s() + budget_s
        left = iter(sample)
        same: list[tuple[Submit, Answer]] = []
        await asyncio.gather(*(self._together(ask, left, same, end_s) for _ in range(_AT_ONCE)))
        self._reasons["time"] += sum(1 for _ in left)
        # As much time again, for the differences.
        begin_s = max(end_s, _now_s())
        end_s = begin_s + budget_s
        agreed = iter(enumerate(same))
        await self._measure_until(ask, agreed, begin_s + budget_s / 2)
        while self._undecided and _now_s() < end_s:
            await self._alone(ask, *self._undecided.pop(0))
        self._reasons["undecided"] += len(self._undecided[_PLACES:])
        del self._undecided[_PLACES:]
        await self._measure_until(ask, agreed, end_s)

    def so_far(self) -> Repeated:
        """Return the results of all comparisons."""
        left_out = self._reasons + Counter(undecided=len(self._undecided))
        return Repeated(
            compared=self._counts["compared"],
            tokens=self._counts["tokens"],
            reused=self._counts["reused"],
            known=self._counts["known"],
            served_differ=self._counts["served"],
            control_differ=self._counts["control"],
            served=tuple(self._served),
            control=tuple(self._control),
            usual_gap=median(self._gaps) if self._gaps else None,
            noise=self._noise[0],
            noise_tokens=self._noise[1],
            exact=self._exact,
            left_out=dict(left_out),
            beside=dict(self._beside),
            met=self._met,
        )

    async def _together(
        self,
        ask: Ask,
        left: Iterator[_Served],
        same: list[tuple[Submit, Answer]],
        end_s: float,
    ) -> None:
        while _now_s() < end_s:
            served = next(left, None)
            if served is None:
                return
            control = await ask(served.request, token_hex(16), False)
            if control is None:
                self._reasons["failed"] += 1
            elif _is_equal(served.answer, control):
                self._compared(served)
                same.append((served.request, control))
            else:
                self._undecided.append((served, control))

    async def _measure_until(
        self, ask: Ask, agreed: Iterator[tuple[int, tuple[Submit, Answer]]], end_s: float
    ) -> None:
        """Measure the effect of rounding until ``end_s``, or at enough tokens."""
        for number, (request, control) in agreed:
            is_enough = number >= _MEASURED and self._noise[1] >= _MEASURED_TOKENS
            if is_enough or _now_s() > end_s:
                return
            await self._measure(ask, request, control)

    async def _measure(self, ask: Ask, request: Submit, control: Answer) -> None:
        """Measure the rounding of an unchanged answer, alone and with reuse."""
        key = token_hex(16)
        for _ in range(2):
            again = await ask(request, key, False)
            if again is None or not _is_equal(again, control):
                return
            largest, tokens = _noise(control.logprobs, again.logprobs)
            self._noise = max(self._noise[0], largest), self._noise[1] + tokens
            gaps = [token.gap for token in again.logprobs]
            self._gaps += [gap for gap in gaps if gap is not None]
        del self._gaps[:-_GAPS_KEPT]
        if self._both_ways:
            whole = await ask(request, token_hex(16), True)
            if whole is not None and not _is_equal_streamed(whole, control):
                await self._alone(ask, _Served(request, control), control, whole=True)

    async def _alone(
        self, ask: Ask, served: _Served, control: Answer, *, whole: bool = False
    ) -> None:
        """Compare both answers with those that the request gets when sent alone.

        If ``whole``, those are not streamed; then ``served`` and ``control`` are the same answer,
        which agreed with all streamed ones.
        """
        answers = []
        for _ in range(_ALONE):
            answer = await ask(served.request, token_hex(16), whole)
            if answer is None:
                self._reasons["failed"] += 1
                return
            answers.append(answer)
        alone = answers[0]
        if not all(_is_equal(answer, alone) for answer in answers[1:]):
            self._reasons["unsteady"] += 1
            return
        if not whole:
            self._compared(served)
        for name, answer, kept in (
            ("served", served.answer, self._served),
            ("control", control, self._control),
        ):
            if _is_equal(answer, alone):
                continue
            self._counts[name] += 1
            if len(kept) < _KEPT:
                found = _differing(served.request, answer, alone, _reused(served.answer))
                beside = tuple(sorted(served.beside)) if name == "served" else ()
                kept.append(msgspec.structs.replace(found, streamed=whole, beside=beside))

    def _compared(self, served: _Served) -> None:
        self._counts["compared"] += 1
        self._counts["tokens"] += served.answer.tokens
        self._beside.update(served.beside)
        self._met += bool(served.beside)
        reused = _reused(served.answer)
        self._counts["known"] += reused is not None
        self._counts["reused"] += reused is True


def _unfit(request: Submit) -> str:
    """Return why the request may get a different answer next time; empty if it may not."""
    if request.sampling.temperature:
        return "sampled"
    if request.session_id:
        return "session"
    is_plain = not isinstance(request, ServerSubmit) or not (request.options or request.malformed)
    return "" if is_plain else "options"


def _is_equal(one: Answer, other: Answer) -> bool:
    return _content(one) == _content(other) and not (one.ids and _text_differs(one, other))


def _is_equal_streamed(whole: Answer, streamed: Answer) -> bool:
    """Return whether a whole answer equals a streamed one.

    Ignores what servers may leave out of either: spaces, parts of characters, and the token that
    ends the answer.
    """
    shorter, longer = sorted((whole.ids, streamed.ids), key=len)
    is_same = shorter == longer or (whole.reason == "stop" and shorter == longer[:-1])
    return (is_same or not shorter) and not _text_differs(whole, streamed)


def _content(answer: Answer) -> str | Sequence[int]:
    return answer.ids or "".join(answer.pieces)


def _text_differs(one: Answer, other: Answer) -> bool:
    """Return whether the texts of equal token ids differ.

    Ignores differences that come from how a server cuts a stream: spaces, and characters of several
    tokens.
    """
    texts = ["".join("".join(answer.pieces).split()) for answer in (one, other)]
    return texts[0] != texts[1] and not any(BROKEN in text for text in texts)


def _differing(request: Submit, answer: Answer, alone: Answer, reused: bool | None) -> Differing:
    prompt, content = len(request.input_ids), _content(answer)
    if content == _content(alone):
        return Differing(0, prompt, None, reused, "text")
    found = first_difference(content, _content(alone), alone.logprobs)
    certain: Literal["", "length"] = "length" if _ends_early(answer, alone) else ""
    return Differing(found.place, prompt, found.margin, reused, certain)


def _ends_early(answer: Answer, alone: Answer) -> bool:
    """Return whether the shorter answer ended before the limit of both, without an end token."""
    if not all(one.output_tokens or one.ids for one in (answer, alone)):
        return False  # chunks were counted, and may have several tokens
    shorter = min(answer, alone, key=lambda one: one.tokens)
    return answer.tokens != alone.tokens and bool(alone.reason) and shorter.reason in _AT_LIMIT


def _noise(some: Sequence[Token], others: Sequence[Token]) -> tuple[float, int]:
    """Return the largest difference of equal tokens' logprobs, in nats, and the number of pairs."""
    differences = [
        abs(one.logprob - other.logprob)
        for one, other in zip(some, others, strict=False)
        if one.name == other.name
    ]
    return max(differences, default=0.0), len(differences)


def _reused(answer: Answer) -> bool | None:
    """Return whether part of its prompt came from the server's cache; None if unknown."""
    return None if answer.cached_tokens is None else answer.cached_tokens > 0


def _now_s() -> float:
    return asyncio.get_running_loop().time()
