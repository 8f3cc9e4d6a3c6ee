"""A finding, and its basis: typed evidence, and the sentences about it.

A kind is a subclass of ``Basis`` and lives in one file of ``analysis/findings/``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, ClassVar

import msgspec

from hybridbench.records.codec import to_json
from hybridbench.records.json_value import JsonValue


class Evidence(StrEnum):
    """The kind of evidence behind a finding.

    Missing samples, missing coverage and measurement overhead can spoil a fit, but they cannot
    refute a count.
    """

    EXACT = "exact"  # counted, or reported by the engine itself
    STATISTICAL = "statistical"  # a fit, or an interval


@dataclass(frozen=True)
class Words:
    """The sentences of one finding: title (what, how much, since when), cause, evidence."""

    title: str
    cause: str = ""
    evidence: tuple[str, ...] = ()


class NextCommand(StrEnum):
    """The command to suggest with a piece of advice; the report adds its options."""

    AGAIN = "again"  # that of the run
    REPORT = "report"  # judges the stored samples again
    NONE = "none"


@dataclass(frozen=True)
class NextStep:
    """What to do about a finding, in one or two sentences; empty for the general advice."""

    text: str
    command: NextCommand


class Basis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The named, typed values behind a finding; each subclass is one kind of finding.

    Attributes:
        kind: stable name for programs: ``residual``.
        meaning: one sentence for a reader of a report.
        evidence: whether such a finding is exact or statistical.
        leads_to: the verdicts that it leads to, in words.
        question: the statement that CI checks for every run; empty if CI checks by metric name.
        names_mechanism: such a finding precedes those that only report growth.
        next_command: the command for the advice.
        decided_by_length: whether a longer run would decide findings of this kind.
        from_steady: its counts begin when the engine is steady.
        from_checkpoints: it is read from idle checkpoints alone.
        advised: one or two sentences of advice that do not depend on its values.
    """

    kind: ClassVar[str]
    meaning: ClassVar[str]
    evidence: ClassVar[Evidence] = Evidence.EXACT
    leads_to: ClassVar[str] = "LEAK"
    question: ClassVar[str] = ""
    names_mechanism: ClassVar[bool] = False
    next_command: ClassVar[NextCommand] = NextCommand.AGAIN
    decided_by_length: ClassVar[bool] = True
    from_steady: ClassVar[bool] = False
    from_checkpoints: ClassVar[bool] = False
    advised: ClassVar[str] = ""

    @property
    def code(self) -> str:
        """The kind of this particular finding."""
        return self.kind

    @property
    def is_exact(self) -> bool:
        """Whether it rests on counts, so that doubts about the run do not invalidate it."""
        return self.evidence is Evidence.EXACT

    @property
    def needs_longer_run(self) -> bool:
        """Whether a longer run would decide this particular finding."""
        return self.decided_by_length

    @property
    def needed_s(self) -> float | None:
        """How long the judged window must be to decide it; None if length does not matter."""
        return None

    def words(self, found: Finding) -> Words:
        """Return the sentences about ``found``, whose basis this is."""
        raise NotImplementedError(type(self).__name__)

    def advice(self, found: Finding) -> str:
        """Return one or two sentences of advice; empty for the general advice."""
        del found
        return self.advised

    def next_step(self, found: Finding) -> NextStep:
        """Return the advice with its command."""
        return NextStep(self.advice(found), self.next_command)

    def as_data(self) -> dict[str, JsonValue]:
        """Return the values by name, as in verdict.json."""
        return to_json(self)


class Recorded(Basis, frozen=True, kw_only=True):
    """A finding with given sentences: read from a file, or from a comparison's answer."""

    kind = ""
    meaning = ""

    name: str
    title: str = ""
    cause: str = ""
    lines: tuple[str, ...] = ()
    data: Mapping[str, JsonValue] = {}
    exact: bool = False

    @property
    def code(self) -> str:
        return self.name

    @property
    def is_exact(self) -> bool:
        return self.exact

    @property
    def needed_s(self) -> float | None:
        needed_s = self.data.get("needed_s")
        return float(needed_s) if isinstance(needed_s, int | float) else None

    def words(self, found: Finding) -> Words:
        del found
        return Words(self.title, self.cause, self.lines)

    def as_data(self) -> dict[str, JsonValue]:
        return dict(self.data)


_NAMES = ("events", "share", "exact", "rise", "of_steps")


class HowDriven(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={name: f"driver_{name}" for name in _NAMES},
):
    """The evidence for a finding's driver.

    Attributes:
        events: how often it occurred.
        share: share of the growth that falls in intervals or steps in which it occurred.
        exact: whether every event added the same number; None if that was not tested.
        rise: total gain, for quantities that rise and fall.
        of_steps: share of all steps in which it occurred; None if only samples are known.
        rivals: other counters that explain the growth equally well.
    """

    events: float
    share: float
    exact: bool | None = None
    rise: float | None = None
    of_steps: float | None = None
    rivals: tuple[str, ...] = ()


class Faster(msgspec.Struct, frozen=True, kw_only=True):
    """Growth faster than that of private memory, in bytes per hour, and the latter's upper bound.

    ``text`` explains it.
    """

    value: float
    lower: float
    upper: float
    memory_upper: float
    text: str

    def as_data(self) -> dict[str, JsonValue]:
        """Return the rates by name, as in verdict.json."""
        stored = to_json(self)
        del stored["text"]
        return stored


# Ends of an interval; an infinite end is stored as null.
LowerEnd = Annotated[float, msgspec.Meta(extra={"null": -math.inf})]
UpperEnd = Annotated[float, msgspec.Meta(extra={"null": math.inf})]


class VerdictKind(StrEnum):
    """The outcome of a run; verdicts.md says what each one asserts."""

    CLEAN = "CLEAN"
    LEAK = "LEAK"
    DEGRADED = "DEGRADED"
    INVARIANT = "INVARIANT"
    CORRUPT = "CORRUPT"
    INCONCLUSIVE = "INCONCLUSIVE"
    CRASHED = "CRASHED"
    INVALID = "INVALID"


@dataclass(frozen=True)
class Rate:
    """A growth rate with its interval: ``value`` [``lower``, ``upper``] in ``unit`` per ``per``."""

    value: float
    lower: LowerEnd
    upper: UpperEnd
    unit: str  # "B", "slots", "nodes"
    per: str  # "h", or the driver's singular: "request", "evicted node"
    confidence: float = 0.95


@dataclass(frozen=True)
class Finding:
    """One problem that was found.

    ``subject`` is what leaks or is inconsistent (metric, pool, class), ``driver`` the event counter
    that explains it (None if only time does) and ``driven`` the evidence for it.  ``segments`` are
    those of a resumed run in which it was found, counted from 1.
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
        """The stable name of the finding: ``residual``, ``growth``."""
        return self.basis.code

    @property
    def exact(self) -> bool:
        """Whether it rests on counts, so that doubts about the run do not invalidate it."""
        return self.basis.is_exact

    @property
    def title(self) -> str:
        """One sentence: what, how much, since when."""
        return self._words.title

    @property
    def cause(self) -> str:
        """What explains it; empty if unknown."""
        return self._words.cause

    @property
    def evidence(self) -> tuple[str, ...]:
        """One line for each piece of evidence."""
        faster, parts = self.faster_than_memory, [f"{number}" for number in self.segments]
        return (
            *(() if faster is None else (faster.text,)),
            *self._words.evidence,
            *((f"in segment{'s' * (len(parts) > 1)} {' and '.join(parts)}",) if parts else ()),
        )

    @property
    def data(self) -> dict[str, JsonValue]:
        """All values that support it, by name, as in verdict.json."""
        faster = self.faster_than_memory
        return {
            **self.basis.as_data(),
            **({} if self.driven is None else to_json(self.driven)),
            **({} if faster is None else {"faster_than_memory": faster.as_data()}),
            **({"segments": list(self.segments)} if self.segments else {}),
        }

    def make_words(self) -> None:
        """Generate the sentences now, and keep them.

        Raises:
            Exception: a value that they need is missing or invalid.
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
    """Return a finding with a given title."""
    return Finding(Recorded(name=kind, title=title, data=data or {}), verdict, subject)
