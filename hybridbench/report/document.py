"""What a report says, before any format: the renderers turn this into HTML, Markdown or a console.

Nothing here is specific to an output; numbers that a person reads are already words with units,
and only charts still hold arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hybridbench.analysis.findings import VerdictKind
from hybridbench.analysis.record import FloatArray


class Ink(StrEnum):
    """How a line is drawn; a renderer maps these to colours of its palette."""

    PLAIN = "plain"
    FIT = "fit"  # the fitted trend, over the data
    SPREAD = "spread"  # one edge of the band around a fit; in pairs, the lower one first
    LIMIT = "limit"  # a size that cannot be passed


@dataclass(frozen=True)
class Fact:
    """One answer: a short question and one or two sentences; ``code`` is a command to copy."""

    label: str
    text: str
    code: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of words; ``numeric`` names the columns (by position) that align to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class FindingText:
    """One finding in words."""

    verdict: VerdictKind
    kind: str
    subject: str
    title: str
    facts: tuple[Fact, ...]
    evidence: tuple[str, ...]
    data: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Line:
    """One curve of a chart in the chart's display unit."""

    label: str
    t_s: FloatArray
    value: FloatArray
    ink: Ink = Ink.PLAIN
    colour: int = 0  # position in the palette


@dataclass(frozen=True)
class Chart:
    """Curves over one time axis.  A stacked chart's lines share their times and add up."""

    key: str  # unique in a document, fit for an HTML id
    title: str
    unit: str
    lines: tuple[Line, ...]
    note: str = ""
    stacked: bool = False
    from_zero: bool = True
    min_span: float = 0.0  # smallest height of the y axis, so that noise does not look like news
    wide: bool = False


@dataclass(frozen=True)
class ChartGroup:
    """Charts under one heading."""

    title: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Span:
    """A stretch of the run with a name."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Mark:
    """A moment of the run; ``kind`` decides how it is drawn, ``label`` what it says."""

    kind: str
    t_s: float
    label: str


@dataclass(frozen=True)
class Timeline:
    """What every chart shows behind its curves."""

    end_s: float
    phases: tuple[Span, ...] = ()
    window: Span | None = None
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class DiagnosisText:
    """What the resting worker held and gave back; ``paragraph`` is for a bug report."""

    paragraph: str
    split: Table
    rungs: Table
    holders: Table
    cycles: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Document:
    """A whole report in reading order."""

    run_id: str
    subtitle: str  # model, profile, length, start
    verdict: VerdictKind
    meaning: str  # what this verdict asserts, one sentence
    exit_code: int
    headline: str
    answer: tuple[Fact, ...]
    ruling: str  # what this length can and cannot rule out
    findings: tuple[FindingText, ...]
    bounds: Table
    coverage: Table
    not_seen: tuple[str, ...]
    notes: tuple[str, ...]
    timeline: Timeline
    charts: tuple[ChartGroup, ...]
    events: Table
    provenance: tuple[Table, ...]
    command: str
    profile_text: str = ""
    tool_version: str = ""
    diagnosis: DiagnosisText | None = None
