"""The same comparison many times over: how often it says what, where the truth is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridbench.analysis.comparison.compare import compare
from hybridbench.analysis.comparison.records import ComparisonVerdict
from hybridbench.compare.store import read_comparison
from hybridbench.errors import ExitCode


@dataclass(frozen=True)
class Repetition:
    """One comparison of a row.

    ``call`` is that of the metric which the answer rests on; ``answer`` is the whole, guards and
    leaks included.
    """

    call: str
    answer: str
    ratio: float
    lower: float
    upper: float
    rounds: int


@dataclass(frozen=True)
class RepeatedRow:
    """What came of comparing ``versions`` again and again; ``expected`` is the right call."""

    versions: tuple[str, ...]
    expected: str
    repetitions: tuple[Repetition, ...]

    def count(self, call: str) -> int:
        """How often ``call`` was made."""
        return sum(r.call == call for r in self.repetitions)


# What a row can be called, in the order of the table's columns.
CALLS = ("SAME", "SLOWER", "FASTER", "INCONCLUSIVE")


def repeat(
    versions: Sequence[str],
    expected: str,
    times: int,
    run_once: Callable[[Sequence[str], int], tuple[Path, ExitCode | None]],
    told: Callable[[Repetition], None],
) -> RepeatedRow:
    """Compare ``versions`` ``times`` over, the seed rising by one each time.

    ``run_once`` makes one comparison; one that somebody ended is left out and is the last.
    """
    done: list[Repetition] = []
    for index in range(times):
        directory, hint = run_once(versions, index)
        if hint is not None:
            break
        stored = read_comparison(directory)
        done.append(repetition_of(compare(stored.comparison, stored.terms)))
        told(done[-1])
    return RepeatedRow(tuple(versions), expected, tuple(done))


def repetition_of(verdict: ComparisonVerdict) -> Repetition:
    """A row's entry from a comparison of two versions."""
    primary = verdict.sides[0].primary()
    if primary is None:
        nan = float("nan")
        return Repetition("INCONCLUSIVE", verdict.word, nan, nan, nan, verdict.rounds)
    return Repetition(
        primary.word, verdict.word, primary.ratio, primary.lower, primary.upper, verdict.rounds
    )


def markdown(rows: Sequence[RepeatedRow]) -> str:
    """The table: a row for each pair of versions, how often each call was made."""
    head = ["compared", "times", *CALLS, "rounds", "throughput ratio", "other answers"]
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line(_cells(row)) for row in rows]
    return "\n".join(lines) + "\n"


def _cells(row: RepeatedRow) -> list[str]:
    made = row.repetitions
    if not made:
        return [" and ".join(row.versions), "0", *([""] * (len(CALLS) + 3))]
    ratios = sorted(r.ratio for r in made)
    # The answer as a whole may be a guard's or a leak's, beside what the throughput was called.
    others = Counter(r.answer for r in made if r.answer != r.call)
    return [
        " and ".join(row.versions),
        str(len(made)),
        *(f"**{row.count(c)}**" if c == row.expected else str(row.count(c)) for c in CALLS),
        f"{sum(r.rounds for r in made) / len(made):.0f}",
        f"{ratios[len(ratios) // 2]:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})",
        ", ".join(f"{count} {word}" for word, count in others.most_common()) or "none",
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
