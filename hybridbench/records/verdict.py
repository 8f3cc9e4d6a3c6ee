"""The result of judging a run: findings, results by metric, and one verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import msgspec

from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.metrics import MEMORY, spec_of
from hybridbench.records.codec import to_json
from hybridbench.records.finding import (
    Finding,
    Rate,
    VerdictKind,
)
from hybridbench.records.json_value import JsonValue
from hybridbench.records.threshold_result import ThresholdResult

# If several findings hold, the first of these is the verdict; every finding is kept.
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

# The model of a metric with too few samples to fit any: it has no rate.
NO_MODEL = "none"

WAITING, RETAINED = "instances-wait-for-collector", "instances-retained"


def precedence(verdict: VerdictKind, *, exact: bool) -> int:
    """Return a finding's rank, by its verdict and whether it was counted; the lowest decides."""
    if exact and verdict in _COUNTED:
        return _COUNTED.index(verdict)
    return len(_COUNTED) + _OTHERS.index(verdict)


def leak_kind(kind: str) -> str:
    """Return ``kind`` as used in the signature that identifies a finding across runs.

    Dead instances of one class are one leak.  Its kind depends on what happens to most of them,
    which may change from one run to the next.
    """
    return WAITING if kind == RETAINED else kind


class Why(msgspec.Struct, frozen=True, dict=True):
    """The reason for a judgement.

    Only code and data are stored: ``text``, the wording, is empty after reading it back.
    """

    code: str  # of a class of reasons; later versions may have more
    data: Mapping[str, JsonValue] = {}
    text: ClassVar[str] = ""  # set on each instance, but not a field

    def __reduce__(self) -> tuple[Callable[..., Why], tuple[object, ...]]:
        # A look at a run in progress comes pickled from another process.
        return _worded, (self.code, self.data, self.text)


def _worded(code: str, data: Mapping[str, JsonValue], text: str) -> Why:
    why = Why(code, data)
    msgspec.structs.force_setattr(why, "text", text)
    return why


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The named, typed values of a ``Why``; each subclass is one code.

    A subclass without values has its text in ``said``.
    """

    code: ClassVar[str]
    said: ClassVar[str]

    def text(self) -> str:
        """Return its wording, as part of a sentence."""
        return self.said

    def why(self) -> Why:
        """Convert to the stored form, with its text."""
        return _worded(self.code, to_json(self), self.text())


class MetricResult(msgspec.Struct, frozen=True):
    """The trend analysis of one gated metric in the judged window.

    ``rate_per_hour`` is None if there were too few samples for any model: a range of samples is not
    an interval, and without an interval no growth is ruled out.
    """

    metric: str
    outcome: str  # "LEAK", "CLEAN" (bounded), "INCONCLUSIVE"
    window_s: tuple[float, float]
    rate_per_hour: Rate | None
    rate_per_request: Rate | None
    floor_per_hour: float
    limit_per_hour: float | None
    model: str  # the winning shape, in words
    fit_t_s: tuple[float, ...] = ()  # for the report's chart: the fitted line and its band
    fit_value: tuple[float, ...] = ()
    band_lower: tuple[float, ...] = ()
    band_upper: tuple[float, ...] = ()
    needed_s: float | None = None  # for INCONCLUSIVE: how long a run would decide
    p_value: float | None = None  # of "grows no faster than the floor", in the weakest model
    q_value: float | None = None  # the same, adjusted for all gated metrics of the run (Holm)
    why: Why | None = None  # for INCONCLUSIVE one of analysis/trend/reasons.py
    reason: str = ""  # the text of ``why``, or as stored

    def __post_init__(self) -> None:
        if self.why is not None and self.why.text:
            msgspec.structs.force_setattr(self, "reason", self.why.text)

    @property
    def unit(self) -> str:
        """Unit of the values, the floor and the limit."""
        if self.rate_per_hour is not None:
            return self.rate_per_hour.unit
        spec = spec_of(self.metric)
        return "" if spec is None else spec.unit.value


@dataclass(frozen=True)
class DecayResult:
    """How one cost of work or one rate changed over the judged window.

    ``outcome`` is "no change", "worse" (a finding), "machine" (everything rose by the same factor),
    "not judged" (too few blocks, or nothing to compare with) or "shown".  ``change`` is a share of
    the initial level, positive if worse, with its 95% interval; None if nothing was fitted.
    """

    name: str
    label: str
    unit: str
    value: float  # over the whole window
    outcome: str
    least_change: float  # the smallest change that counts, as a share
    change: float | None = None
    change_lower: float | None = None
    change_upper: float | None = None


@dataclass(frozen=True)
class LevelResult:
    """One metric's level in the judged window of a run, for comparing runs.

    It has a 95% interval, with None for an infinite end; for an extreme or a last value, both ends
    are the value itself.
    """

    metric: str
    stat: str  # of ``hybridbench.foundation.thresholds.Stat``
    unit: str
    value: float
    lower: float | None
    upper: float | None


def memory_result(metrics: Iterable[MetricResult]) -> MetricResult | None:
    """Return the result for private memory; None if it was not judged."""
    return next((result for result in metrics if result.metric == MEMORY), None)


@dataclass(frozen=True)
class ServingResult:
    """One row of a summary, like that of ``vllm bench serve``, of the judged window's requests.

    ``value`` is a rate, a number or a share; for a latency, its mean.  Only latencies have
    percentiles.
    """

    name: str  # "requests_per_s", "ttft_ms", "errors", "hit_rate", ...
    unit: str
    value: float
    count: int  # sample size: requests; for inter-token latency, gaps between tokens
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Covered:
    """How often a run saw an event; ``required`` is None if the profile requires nothing."""

    required: int | float | None
    seen: int | float
    met: bool


@dataclass(frozen=True)
class Bounds:
    """The basis for a verdict's headline and for its statement of what is ruled out."""

    memory: MetricResult | None = None  # for private memory, over all that was judged
    steady: bool = False
    smallest_leak: float | None = None  # bytes per hour; a smaller one would not be called


@dataclass(frozen=True)
class Failure:
    """A part of the analysis that raised an exception, because of a bug in the bench."""

    part: str  # in words: "the worker's log", "the trend of rss_anon_swap_bytes"
    said: str  # type and message of the exception
    trace: str  # its traceback


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run, with everything that supports it."""

    kind: VerdictKind
    # The sentence that is read first, after the word of ``kind``.  ``headline.py`` writes it and
    # the text of ``can_rule_out``; both are empty until then.
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
    # Not stored in verdict.json: each failure is also a finding; ``bounds`` is needed for texts.
    failures: tuple[Failure, ...] = ()
    bounds: Bounds = Bounds()

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_CODE[self.kind]

    @property
    def full_headline(self) -> str:
        """The headline with its word, for places that do not print the word separately."""
        return f"{self.kind}: {self.headline}"

    @property
    def invalid(self) -> bool:
        """Whether a finding invalidates all the run's fits and the absence of other findings.

        The verdict may still be a different one, because exact findings remain valid.
        """
        kinds = {self.kind, *(finding.verdict for finding in self.findings)}
        return VerdictKind.INVALID in kinds

    def stands(self, finding: Finding) -> bool:
        """Whether ``finding``, one of this verdict's, is valid despite problems with the run."""
        return finding.exact or finding.verdict is VerdictKind.INVALID or not self.invalid
