"""A report's content, independent of format: runs, comparisons and nights are all Documents.

The renderers turn one into HTML, Markdown, JUnit XML or console output.  Measured numbers are
quantities, which have the same text everywhere; the curves of charts are arrays.  Renderers omit
the parts that a document leaves empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hybridbench import __version__
from hybridbench.analysis.record import FloatArray
from hybridbench.report.quantity import Quantity, Text


class DocumentKind(StrEnum):
    """A document's subject, as worded in the head of its page."""

    RUN = "soak report"
    WATCH = "report of a watched server"
    COMPARISON = "comparison"
    NIGHTLY = "nightly report"
    HISTORY = "history"
    SERIES = "series"


class Tone(StrEnum):
    """How good or bad an answer is; a renderer maps these to colours of its palette."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"  # not decided
    VOID = "void"  # inconclusive


@dataclass(frozen=True)
class Badge:
    """A verdict in one word, with its own shape, so that colour is not needed."""

    word: str
    glyph: str
    tone: Tone


class GateState(StrEnum):
    """The answer to a gate."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"  # not decided; the text says why
    ERROR = "error"  # crashed, invalid or missing: there is no answer


@dataclass(frozen=True)
class Gate:
    """One question that CI asks, and its answer.

    ``group`` and ``name`` together are unique in a document and the same in every nightly run, so
    that CI can follow a gate over time: they contain no numbers and no run ids.
    """

    name: str
    group: str
    state: GateState
    text: Text  # one sentence, with the rate and its interval if there is one
    detail: str = ""  # lines of evidence
    measured_s: float | None = None  # the length of the judged time
    minor: bool = False  # does not affect the verdict while undecided


_STATE_WORDS: Final = {
    GateState.FAILED: "failed",
    GateState.ERROR: "without an answer",
    GateState.SKIPPED: "not decided",
    GateState.PASSED: "passed",
}


def tally(gates: Sequence[Gate]) -> str:
    """Summarise: ``31 gates: 1 failed, 2 not decided, 28 passed``."""
    states = [gate.state for gate in gates]
    counts = [f"{states.count(s)} {word}" for s, word in _STATE_WORDS.items() if s in states]
    return f"{len(gates)} {'gate' if len(gates) == 1 else 'gates'}: {', '.join(counts)}"


@dataclass(frozen=True)
class Measure:
    """One number of the verdict, for programs that plot it over nightly runs."""

    name: str  # unique in a document and the same in every nightly run
    quantity: Quantity
    unit: str  # including the denominator of a rate
    smaller_is_better: bool = True


class Ink(StrEnum):
    """How a line is drawn; a renderer maps these to colours of its palette."""

    PLAIN = "plain"
    POINTS = "points"  # measured values that are not joined by lines
    FIT = "fit"  # the fitted trend, over the data
    SPREAD = "spread"  # one edge of the band around a fit; in pairs, the lower one first
    LIMIT = "limit"  # a size that cannot be exceeded


class Legend(StrEnum):
    """The number that a chart's legend shows for a line while the pointer is elsewhere."""

    LAST = "last value"
    MEAN = "mean"  # over the judged window, if there is one
    SERVED = "as served"  # the value in the run's table, over the judged window


@dataclass(frozen=True)
class Fact:
    """One answer: a short question and one or two sentences; ``code`` is a command to copy."""

    label: str
    text: Text
    code: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of words and quantities; ``numeric`` lists the columns that are right-aligned.

    A cell that is one of ``wording.BADGES`` is drawn as a badge.  A table without rows is omitted,
    unless ``empty`` says what that means.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    numeric: frozenset[int] = frozenset()
    note: Text = ""
    empty: str = ""
    links: tuple[str, ...] = ()  # empty, or one per row: a relative path for its first cell
    optional: frozenset[int] = frozenset()  # columns that a narrow terminal leaves out first

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The rows as a reader sees them."""
        return tuple(tuple(map(str, row)) for row in self.rows)


# The label of ``Document.ruling`` if it says what would have been found.
DETECTION_LIMIT: Final = "Detection limit"
NO_TABLE = Table("", (), ())


@dataclass(frozen=True)
class FindingText:
    """One finding in words."""

    badge: Badge
    kind: str
    subject: str
    title: str
    facts: tuple[Fact, ...] = ()
    evidence: tuple[str, ...] = ()
    data: tuple[tuple[str, Text], ...] = ()


@dataclass(frozen=True)
class Line:
    """One curve of a chart in the chart's display unit."""

    label: str
    t_s: FloatArray
    value: FloatArray
    ink: Ink = Ink.PLAIN
    colour: int = 0  # position in the palette
    shown: Quantity | None = None  # in the legend, in place of a last or mean value


@dataclass(frozen=True)
class Chart:
    """Curves over time.  A stacked chart's lines share their times and add up.

    If the x axis is not time, ``counted`` names what it counts (``round``); ``t_s`` of the lines
    then holds those counts, and the chart is not linked to the others.
    """

    key: str  # unique in a document, usable as an HTML id
    title: str
    unit: str = ""
    lines: tuple[Line, ...] = ()
    note: Text = ""
    stacked: bool = False
    from_zero: bool = True
    min_span: float = 0.0  # smallest height of the y axis, so that noise is not magnified
    wide: bool = False
    counted: str = ""
    legend: Legend = Legend.LAST


@dataclass(frozen=True)
class ChartGroup:
    """Charts under one heading."""

    title: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Span:
    """A named stretch of the run."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Mark:
    """A moment of the run; ``kind`` determines its style, ``label`` its text."""

    kind: str
    t_s: float
    label: str


@dataclass(frozen=True)
class Timeline:
    """The background common to all charts."""

    end_s: float
    phases: tuple[Span, ...] = ()
    window_s: tuple[float, float] | None = None  # the judged window
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class DiagnosisText:
    """What the idle worker held and released; ``paragraph`` is for a bug report."""

    paragraph: str
    split: Table
    stages: Table
    holders: Table
    calls: Table
    cycles: tuple[Text, ...]
    notes: tuple[str, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        """In reading order; a report omits those without rows."""
        return self.split, self.holders, self.calls, self.stages


@dataclass(frozen=True)
class Document:
    """A whole report in reading order; parts at their default are left out."""

    kind: DocumentKind
    run_id: str  # the name of the directory that holds it
    subtitle: Text  # model, profile, length, start
    badge: Badge
    meaning: str  # what the badge asserts, one sentence
    exit_code: int
    headline: Text
    answer: tuple[Fact, ...]
    gates: tuple[Gate, ...]
    suite: str = "hybridbench"  # what was tested, the same in every nightly run: model and profile
    measures: tuple[Measure, ...] = ()
    ruling: Text = ""  # what this length can and cannot rule out
    ruling_label: str = DETECTION_LIMIT
    tables: tuple[Table, ...] = ()  # right after the verdict
    findings: tuple[FindingText, ...] = ()
    bounds: Table = NO_TABLE
    coverage: Table = NO_TABLE
    not_seen: tuple[str, ...] = ()
    notes: tuple[Text, ...] = ()
    timeline: Timeline = Timeline(0.0)
    charts: tuple[ChartGroup, ...] = ()
    events: Table = NO_TABLE
    provenance: tuple[Table, ...] = ()
    command: str = ""
    profile_text: str = ""
    tool_version: str = __version__
    diagnosis: DiagnosisText | None = None
    so_far: bool = False  # for a run in progress: the verdict may change, no exit code yet
    data_file: str = "verdict.json"  # file next to the page that has all of it for programs
