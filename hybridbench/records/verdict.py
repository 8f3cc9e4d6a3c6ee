"""What a judged run says: findings, results per metric, one verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Annotated, ClassVar, Final

import msgspec

from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.metrics import MEMORY, spec_of
from hybridbench.records.codec import to_json
from hybridbench.records.finding import Basis, Faster, HowDriven, Recorded, Words
from hybridbench.records.json_value import JsonValue
from hybridbench.thresholds.result import ThresholdResult


class VerdictKind(StrEnum):
    """The answer of a run; verdicts.md says what each asserts."""

    CLEAN = "CLEAN"
    LEAK = "LEAK"
    DEGRADED = "DEGRADED"
    INVARIANT = "INVARIANT"
    CORRUPT = "CORRUPT"
    INCONCLUSIVE = "INCONCLUSIVE"
    CRASHED = "CRASHED"
    INVALID = "INVALID"


# When several findings hold, the first of these is the verdict; every finding is kept all the same.
# A doubtful run (INVALID) cannot refute what was counted, only what was fitted.
_COUNTED: Final = (VerdictKind.LEAK, VerdictKind.INVARIANT)
_OTHERS: Final = (
    VerdictKind.CORRUPT,
    VerdictKind.CRASHED,
    VerdictKind.INVALID,
    VerdictKind.LEAK,
    VerdictKind.INVARIANT,
    VerdictKind.DEGRADED,
    VerdictKind.INCONCLUSIVE,
    VerdictKind.CLEAN,
)

EXIT_CODE: Mapping[VerdictKind, ExitCode] = {kind: ExitCode[kind.name] for kind in VerdictKind}

# The model of a metric with too few samples for any: no rate comes with it.
NO_MODEL = "none"

# Ends of an interval; one without a bound is stored as null.
LowerEnd = Annotated[float, msgspec.Meta(extra={"null": -math.inf})]
UpperEnd = Annotated[float, msgspec.Meta(extra={"null": math.inf})]

WAITING, RETAINED = "instances-wait-for-collector", "instances-retained"


def precedence(verdict: VerdictKind, *, exact: bool) -> int:
    """The place of a finding among others, by its verdict and whether it was counted: the lowest
    place decides.
    """
    if exact and verdict in _COUNTED:
        return _COUNTED.index(verdict)
    return len(_COUNTED) + _OTHERS.index(verdict)


def leak_kind(kind: str) -> str:
    """``kind`` as it stands in the signature by which a finding is known again in another run.

    Dead instances of one class are one leak: which kind it has follows what most of them do, and
    that may change from one run to the next.
    """
    return WAITING if kind == RETAINED else kind


@dataclass(frozen=True)
class Rate:
    """A growth with its interval: ``value`` [``lower``, ``upper``] in ``unit`` per ``per``."""

    value: float
    lower: LowerEnd
    upper: UpperEnd
    unit: str  # "B", "slots", "nodes"
    per: str  # "h", or the driver's singular: "request", "evicted node"
    confidence: float = 0.95


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    ``subject`` is what leaks or contradicts itself (metric, pool, class), ``driver`` the event
    counter that explains it (None when only time does) and ``driven`` how that is known.
    ``segments`` are those of a resumed run in which it was found, counted from 1.
    """

    basis: Basis
    verdict: VerdictKind
    subject: str
    driver: str | None = None
    rates: tuple[Rate, ...] = ()
    since_s: float | None = None
    driven: HowDriven | None = None
    faster_than_memory: Faster | None = None
    segments: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """The stable name of what was found: ``residual``, ``growth``."""
        return self.basis.code

    @property
    def exact(self) -> bool:
        """Whether it was counted: then no doubt about the run sets it aside."""
        return self.basis.is_exact

    @property
    def title(self) -> str:
        """One sentence: what, how much, since when."""
        return self._words.title

    @property
    def cause(self) -> str:
        """What explains it; empty where nothing is known."""
        return self._words.cause

    @property
    def evidence(self) -> tuple[str, ...]:
        """One line for each thing that shows it."""
        faster, parts = self.faster_than_memory, [f"{number}" for number in self.segments]
        return (
            *(() if faster is None else (faster.text,)),
            *self._words.evidence,
            *((f"in segment{'s' * (len(parts) > 1)} {' and '.join(parts)}",) if parts else ()),
        )

    @property
    def data(self) -> dict[str, JsonValue]:
        """All that it rests on, by name, as verdict.json has it."""
        faster = self.faster_than_memory
        return {
            **self.basis.as_data(),
            **({} if self.driven is None else to_json(self.driven)),
            **({} if faster is None else {"faster_than_memory": faster.as_data()}),
            **({"segments": list(self.segments)} if self.segments else {}),
        }

    def make_words(self) -> None:
        """Make the sentences now; they are kept.

        Raises:
            Exception: a value that they need is missing or cannot be.
        """
        _ = self._words

    @cached_property
    def _words(self) -> Words:
        return self.basis.words(self)


def recorded(
    kind: str,
    verdict: VerdictKind,
    subject: str,
    title: str = "",
    data: Mapping[str, JsonValue] | None = None,
) -> Finding:
    """A finding whose title is given."""
    return Finding(Recorded(name=kind, title=title, data=data or {}), verdict, subject)


class Why(msgspec.Struct, frozen=True, dict=True):
    """Why something is judged as it is.

    Stored are code and data alone: ``text``, which says it, is empty in one that was read back.
    """

    code: str  # of ReasonCode or ComparedCode; a later version may know more
    data: Mapping[str, JsonValue] = {}
    text: ClassVar[str] = ""  # an attribute of each, and no field

    def __reduce__(self) -> tuple[Callable[..., Why], tuple[object, ...]]:
        # A look at a run in progress comes from a process of its own, pickled.
        return _worded, (self.code, self.data, self.text)


def _worded(code: str, data: Mapping[str, JsonValue], text: str) -> Why:
    why = Why(code, data)
    msgspec.structs.force_setattr(why, "text", text)
    return why


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The values of a ``Why``, named and typed; a subclass is one code.

    One without values says what ``said`` is.
    """

    code: ClassVar[str]
    said: ClassVar[str]

    def text(self) -> str:
        """What is said of it, as a part of a sentence."""
        return self.said

    def why(self) -> Why:
        """It as it is stored, with its text."""
        return _worded(self.code, to_json(self), self.text())


class MetricResult(msgspec.Struct, frozen=True):
    """The trend analysis of one gated metric in the judged window.

    ``rate_per_hour`` is None where there were too few samples for any model: a range of samples is
    no interval, and without an interval nothing is bounded.
    """

    metric: str
    outcome: str  # "LEAK", "CLEAN" (bounded), "INCONCLUSIVE"
    window_s: tuple[float, float]
    rate_per_hour: Rate | None
    rate_per_request: Rate | None
    floor_per_hour: float
    limit_per_hour: float | None
    model: str  # the winning shape, in words
    fit_t_s: tuple[float, ...] = ()  # for the report's chart: fitted line and its band
    fit_value: tuple[float, ...] = ()
    band_lower: tuple[float, ...] = ()
    band_upper: tuple[float, ...] = ()
    needed_s: float | None = None  # for INCONCLUSIVE: how long a run would decide
    p_value: float | None = None  # of "grows no faster than the floor", in the least sure model
    q_value: float | None = None  # the same, adjusted for all gated metrics of the run (Holm)
    why: Why | None = None  # for INCONCLUSIVE one of the reasons of detection.md 4.1
    reason: str = ""  # the text of ``why``, or as it was stored

    def __post_init__(self) -> None:
        if self.why is not None and self.why.text:
            msgspec.structs.force_setattr(self, "reason", self.why.text)

    @property
    def unit(self) -> str:
        """Of the values, the floor and the limit."""
        if self.rate_per_hour is not None:
            return self.rate_per_hour.unit
        spec = spec_of(self.metric)
        return "" if spec is None else spec.unit.value


@dataclass(frozen=True)
class DecayResult:
    """How one cost of work or one rate changed over the judged window.

    ``outcome`` is "no change", "worse" (a finding), "machine" (everything rose alike), "not judged"
    (too few blocks, or nothing to compare with) or "shown".  ``change`` is a share of the level at
    the start, positive for the worse, with its 95% interval; None where nothing was fitted.
    """

    name: str
    label: str
    unit: str
    value: float  # of the whole window
    outcome: str
    least_change: float  # what counts, as a share
    change: float | None = None
    change_lower: float | None = None
    change_upper: float | None = None


@dataclass(frozen=True)
class LevelResult:
    """What a run showed of one metric in its judged window, for those who compare runs by it.

    The interval is a 95% one, None for an end without bound; for an extreme or a last value it is
    the value itself.
    """

    metric: str
    stat: str  # of ``hybridbench.thresholds.grammar.Stat``
    unit: str
    value: float
    lower: float | None
    upper: float | None


def memory_result(metrics: Iterable[MetricResult]) -> MetricResult | None:
    """That of private memory; None where it was not judged."""
    return next((result for result in metrics if result.metric == MEMORY), None)


@dataclass(frozen=True)
class ServingResult:
    """One row of what a run served in its judged window, as ``vllm bench serve`` ends with.

    ``value`` is a rate, a number or a share; of a latency its mean.  Percentiles are a latency's.
    """

    name: str  # "requests_per_s", "ttft_ms", "errors", "hit_rate", ...
    unit: str
    value: float
    count: int  # what it rests on: requests, of the inter-token latency gaps between tokens
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Covered:
    """How often a run saw an event; ``required`` is None where the profile asserts nothing."""

    required: int | float | None
    seen: int | float
    met: bool


@dataclass(frozen=True)
class Bounds:
    """What the headline of a verdict, and what it rules out, rest on beside its findings."""

    memory: MetricResult | None = None  # of private memory, over all that was judged
    steady: bool = False
    smallest_leak: float | None = None  # bytes an hour; a smaller one would not be called


@dataclass(frozen=True)
class Failure:
    """A part of the analysis that raised instead of answering: a defect of the bench itself."""

    part: str  # in words: "the worker's log", "the trend of rss_anon_swap_bytes"
    said: str  # type and message of the exception
    trace: str  # its traceback


@dataclass(frozen=True)
class Verdict:
    """The answer of a run with everything it rests on."""

    kind: VerdictKind
    # One sentence a person reads first, behind the word of ``kind``.  ``headline.py`` makes it, and
    # the text of ``can_rule_out``: until then they are empty.
    headline: str
    findings: tuple[Finding, ...]
    metrics: tuple[MetricResult, ...]
    window_s: tuple[float, float] | None  # the judged steady window
    can_rule_out: str  # one line: what a run of this length can and cannot rule out
    coverage: Mapping[str, Covered] = field(default_factory=dict)  # by counter
    not_seen: tuple[str, ...] = ()  # what this target could not show
    notes: tuple[str, ...] = ()
    decay: tuple[DecayResult, ...] = ()
    thresholds: tuple[ThresholdResult, ...] = ()
    levels: tuple[LevelResult, ...] = ()
    serving: tuple[ServingResult, ...] = ()
    # Not stored in verdict.json: each failure is a finding as well, and texts are made of the rest.
    failures: tuple[Failure, ...] = ()
    bounds: Bounds = Bounds()

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_CODE[self.kind]

    @property
    def full_headline(self) -> str:
        """The headline with its word, for where that does not stand before it."""
        return f"{self.kind}: {self.headline}"

    @property
    def invalid(self) -> bool:
        """Whether something sets aside all that the run fitted, and all that it did not find.

        The verdict may be another: what was counted stands.
        """
        kinds = {self.kind, *(finding.verdict for finding in self.findings)}
        return VerdictKind.INVALID in kinds

    def stands(self, finding: Finding) -> bool:
        """Whether ``finding``, one of these, holds in spite of what is wrong with the run."""
        return finding.exact or finding.verdict is VerdictKind.INVALID or not self.invalid
