"""What findings of one kind rest on, and what is said of them.

A kind is a subclass of ``Basis`` and lives in one file of ``analysis/findings/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

import msgspec

from hybridbench.records.codec import to_json
from hybridbench.records.codes import Evidence
from hybridbench.records.json_value import JsonValue

if TYPE_CHECKING:
    from hybridbench.records.verdict import Finding


@dataclass(frozen=True)
class Words:
    """The sentences of one finding: title (what, how much, since when), cause, evidence."""

    title: str
    cause: str = ""
    evidence: tuple[str, ...] = ()


class NextCommand(StrEnum):
    """The command that goes with an advice; the report knows its options."""

    AGAIN = "again"  # that of the run
    REPORT = "report"  # judges the stored samples again
    NONE = "none"


@dataclass(frozen=True)
class NextStep:
    """What to do about a finding: one or two sentences, empty for the general advice."""

    text: str
    command: NextCommand


class Basis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The values that a finding rests on, named and typed; a subclass is one kind of finding.

    Attributes:
        kind: stable name for programs: ``residual``.
        meaning: one sentence for a reader of a report.
        evidence: what such a finding rests on.
        leads_to: the verdicts that it leads to, in words.
        question: what CI asks of every run, as the answer it hopes for; empty where CI asks by
            the name of a metric.
        names_mechanism: such a finding comes before those that only say that something grows.
        next_command: what goes with the advice.
        decided_by_length: a longer run decides it, where it is open.
        from_steady: what it counts begins when the engine is steady.
        from_checkpoints: it is read off idle checkpoints alone.
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

    @property
    def code(self) -> str:
        """The kind of this very finding."""
        return self.kind

    @property
    def is_exact(self) -> bool:
        """Whether it was counted: then no doubt about the run sets it aside."""
        return self.evidence is Evidence.EXACT

    @property
    def needed_s(self) -> float | None:
        """How long a judged window would decide it; None where length decides nothing."""
        return None

    def words(self, found: Finding) -> Words:
        """What is said of ``found``, whose basis this is."""
        raise NotImplementedError(type(self).__name__)

    def advice(self, found: Finding) -> str:
        """What to do about it, in one or two sentences; empty for the general advice."""
        del found
        return ""

    def next_step(self, found: Finding) -> NextStep:
        """What to do about it, with the command."""
        return NextStep(self.advice(found), self.next_command)

    def as_data(self) -> dict[str, JsonValue]:
        """The values by name, as verdict.json has them."""
        return to_json(self)


class Recorded(Basis, frozen=True, kw_only=True):
    """A finding whose sentences are given: read from a file, or the answer of a comparison."""

    kind: ClassVar[str] = ""
    meaning: ClassVar[str] = ""

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
    """How the driver of a finding is known.

    Attributes:
        events: how often it happened.
        share: of the growth, in intervals or steps in which it happened.
        exact: every event added the same number; None where that was not tested.
        rise: what was gained in all, of quantities that come and go.
        of_steps: share of all steps in which it happened; None where only samples are known.
        rivals: other counters that explain the growth as well.
    """

    events: float
    share: float
    exact: bool | None = None
    rise: float | None = None
    of_steps: float | None = None
    rivals: tuple[str, ...] = ()


class Faster(msgspec.Struct, frozen=True, kw_only=True):
    """What grows faster than private memory may: bytes an hour, and the upper bound of memory's.

    ``text`` explains it.
    """

    value: float
    lower: float
    upper: float
    memory_upper: float
    text: str

    def as_data(self) -> dict[str, JsonValue]:
        """The rates by name, as verdict.json has them."""
        stored = to_json(self)
        del stored["text"]
        return stored
