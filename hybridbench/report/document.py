"""What a report says, before any format: a run, a comparison and a night are all Documents.

The renderers turn one into HTML, Markdown, JUnit XML or a console.  Nothing here is specific to an
output.  Numbers that were measured are quantities, which have one text everywhere; the curves of
charts are arrays.  Whatever part a document leaves empty, no renderer mentions.
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
    """What a document is about, in the words of its page's head."""

    RUN = "soak report"
    WATCH = "report of a watched server"
    COMPARISON = "comparison"
    NIGHTLY = "nightly report"
    HISTORY = "history"
    SERIES = "series"


class Tone(StrEnum):
    """How an answer is to be taken; a renderer maps these to colours of its palette."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"  # not decided
    VOID = "void"  # proves nothing


@dataclass(frozen=True)
class Badge:
    """A verdict in one word, with a shape of its own: colour is not needed."""

    word: str
    glyph: str
    tone: Tone


class GateState(StrEnum):
    """How a question that CI asks was answered."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"  # not decided; the text says why
    ERROR = "error"  # crashed, invalid or missing: there is no answer


@dataclass(frozen=True)
class Gate:
    """One question that CI asks, and its answer.

    ``group`` and ``name`` together are unique in a document and the same every night, so that a
    CI can follow a gate through time: they hold no numbers and no run ids.
    """

    name: str
    group: str
    state: GateState
    text: Text  # one sentence, with the rate and its interval where there is one
    detail: str = ""  # lines of evidence
    measured_s: float | None = None  # the length of what was judged
    minor: bool = False  # the verdict does not depend on this gate


_STATE_WORDS: Final = {
    GateState.FAILED: "failed",
    GateState.ERROR: "without an answer",
    GateState.SKIPPED: "not decided",
    GateState.PASSED: "passed",
}


def tally(gates: Sequence[Gate]) -> str:
    """``31 gates: 1 failed, 2 not decided, 28 passed``."""
    states = [gate.state for gate in gates]
    counts = [f"{states.count(s)} {word}" for s, word in _STATE_WORDS.items() if s in states]
    return f"{len(gates)} {'gate' if len(gates) == 1 else 'gates'}: {', '.join(counts)}"


@dataclass(frozen=True)
class Measure:
    """One number of the verdict, for programs that plot it over nightly runs."""

    name: str  # unique in a document and the same every night
    quantity: Quantity
    unit: str  # with what the rate is per
    smaller_is_better: bool = True


class Ink(StrEnum):
    """How a line is drawn; a renderer maps these to colours of its palette."""

    PLAIN = "plain"
    POINTS = "points"  # measured values that no line may join
    FIT = "fit"  # the fitted trend, over the data
    SPREAD = "spread"  # one edge of the band around a fit; in pairs, the lower one first
    LIMIT = "limit"  # a size that cannot be passed


class Legend(StrEnum):
    """Which number of a line its chart's legend shows while no moment is pointed at."""

    LAST = "last value"
    MEAN = "mean"  # of the judged window, where there is one
    SERVED = "as served"  # what the table of the run has, over the judged window


@dataclass(frozen=True)
class Fact:
    """One answer: a short question and one or two sentences; ``code`` is a command to copy."""

    label: str
    text: Text
    code: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of words and quantities; ``numeric`` names the columns that align to the right.

    A cell that is one of the words of ``wording.BADGES`` is drawn as such.  A table without rows is
    left out, unless ``empty`` says what that means.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    numeric: frozenset[int] = frozenset()
    note: Text = ""
    empty: str = ""
    links: tuple[str, ...] = ()  # one a row, or none: where its first cell leads, a relative path
    optional: frozenset[int] = frozenset()  # columns that a narrow terminal leaves out first

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The rows as a reader sees them."""
        return tuple(tuple(map(str, row)) for row in self.rows)


# What leads ``Document.ruling`` where it says what would have been found.
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

    ``counted`` says what the x axis counts where that is not time (``round``): then ``t_s`` of the
    lines holds those counts, and the chart is not linked to the others.
    """

    key: str  # unique in a document, fit for an HTML id
    title: str
    unit: str = ""
    lines: tuple[Line, ...] = ()
    note: Text = ""
    stacked: bool = False
    from_zero: bool = True
    min_span: float = 0.0  # smallest height of the y axis, so that noise does not look like news
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
    window_s: tuple[float, float] | None = None  # the judged one
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class DiagnosisText:
    """What the idle worker held and gave back; ``paragraph`` is for a bug report."""

    paragraph: str
    split: Table
    rungs: Table
    holders: Table
    calls: Table
    cycles: tuple[Text, ...]
    notes: tuple[str, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        """In reading order; those without rows are left out of a report."""
        return self.split, self.holders, self.calls, self.rungs


@dataclass(frozen=True)
class Document:
    """A whole report in reading order; what is left at its default is left out."""

    kind: DocumentKind
    run_id: str  # the name of the directory that holds it
    subtitle: Text  # model, profile, length, start
    badge: Badge
    meaning: str  # what the badge asserts, one sentence
    exit_code: int
    headline: Text
    answer: tuple[Fact, ...]
    gates: tuple[Gate, ...]
    suite: str = "hybridbench"  # what was tested, the same every night: model and profile
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
    so_far: bool = False  # of a run in progress: the verdict may change, no exit code yet
    data_file: str = "verdict.json"  # what beside the page holds all of it for machines
