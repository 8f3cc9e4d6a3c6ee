"""Repeat a comparison whose correct result is known, and count the answers."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hybridbench.analysis.comparison.compare import compare
from hybridbench.analysis.comparison.records import ComparisonVerdict
from hybridbench.cli.compare import BlockTime, Margin, MaxTime, Renew, Rounds, SliceTime
from hybridbench.cli.compare_options import CompareOptions
from hybridbench.cli.compare_versions import compared
from hybridbench.cli.options import CompareUi, Model, ProfileName
from hybridbench.cli.output import check_place
from hybridbench.compare.store import read_comparison
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.foreign import SEED_MAX


class Expected(StrEnum):
    """The correct call for the throughput."""

    SAME = "SAME"
    SLOWER = "SLOWER"


_ROWS = ((".", ".", Expected.SAME), (".", "defect:slow-step", Expected.SLOWER))


@dataclass(frozen=True)
class Repetition:
    """One comparison of a row.

    ``call`` is for the primary metric; ``answer`` is the overall one, including guards and leaks.
    """

    call: str
    answer: str
    ratio: float
    lower: float
    upper: float
    rounds: int


@dataclass(frozen=True)
class RepeatedRow:
    """The results of comparing ``versions`` repeatedly; ``expected`` is the correct call."""

    versions: tuple[str, ...]
    expected: str
    repetitions: tuple[Repetition, ...]

    def count(self, call: str) -> int:
        """How often ``call`` was made."""
        return sum(r.call == call for r in self.repetitions)


# The possible calls, in the order of the table's columns.
CALLS = ("SAME", "SLOWER", "FASTER", "INCONCLUSIVE")


def repeat(
    versions: Sequence[str],
    expected: str,
    times: int,
    run_once: Callable[[Sequence[str], int], tuple[Path, ExitCode | None]],
    told: Callable[[Repetition], None],
) -> RepeatedRow:
    """Compare ``versions`` ``times`` times, adding the index of the repetition to the seed.

    ``run_once`` makes one comparison; an interrupted one is dropped and ends the series.
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
    """The entry for a comparison of two versions."""
    primary = verdict.sides[0].primary()
    if primary is None:
        nan = float("nan")
        return Repetition("INCONCLUSIVE", verdict.word, nan, nan, nan, verdict.rounds)
    return Repetition(
        primary.word, verdict.word, primary.ratio, primary.lower, primary.upper, verdict.rounds
    )


def markdown(rows: Sequence[RepeatedRow]) -> str:
    """Return the table: how often each call was made, for each pair of versions."""
    head = ["compared", "times", *CALLS, "rounds", "throughput ratio", "other answers"]
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line(_cells(row)) for row in rows]
    return "\n".join(lines) + "\n"


def _cells(row: RepeatedRow) -> list[str]:
    made = row.repetitions
    if not made:
        return [" and ".join(row.versions), "0", *([""] * (len(CALLS) + 3))]
    ratios = sorted(r.ratio for r in made)
    # A guard or a leak can make the overall answer differ from the call for throughput.
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


def main(
    times: Annotated[int, typer.Option("--repeat", min=1, help="Comparisons of each kind.")] = 20,
    only: Annotated[Expected | None, typer.Option(help="Only the row with this result.")] = None,
    model: Model = None,
    profile: ProfileName = None,
    max_time: MaxTime = "20m",
    block: BlockTime = "5s",
    slice_: SliceTime = "50ms",
    rounds: Rounds = None,
    renew: Renew = 3,
    margin: Margin = "3%",
    ballast: Annotated[
        int, typer.Option(min=0, help="Long-lived Python objects to allocate in each worker.")
    ] = 0,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=SEED_MAX, help="Seed of the first comparison; each next one adds 1."
        ),
    ] = 1,
    store: Annotated[
        Path | None, typer.Option(help="Directory for the comparisons.  Default: temporary.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Also write the table to this file.")
    ] = None,
) -> None:
    """How often a comparison is right: the engine with itself, and with itself 5% slower.

    Each comparison starts new processes.  Ctrl-C stops after the current one and prints the table.
    """
    check_place("--markdown", markdown_file)
    rows = []
    with ExitStack() as held:
        place = store
        if place is None:
            made = tempfile.TemporaryDirectory(prefix="hybridbench-compare-")
            place = Path(held.enter_context(made))

        def once(versions: Sequence[str], index: int) -> tuple[Path, ExitCode | None]:
            options = CompareOptions(
                model=model, profile=profile, max_time=max_time, block=block, slice_=slice_,
                rounds=rounds, renew_every=renew, margin=margin, seed=seed + index, ballast=ballast,
                store=place, ui=CompareUi.NONE,
            )  # fmt: skip
            return compared(versions, options)

        for base, other, expected in _ROWS:
            if only in (None, expected):
                rows.append(repeat((base, other), expected, times, once, _print))
                if len(rows[-1].repetitions) < times:
                    break
    table = markdown(rows)
    if markdown_file is not None:
        markdown_file.write_text(table, encoding="utf-8")
    typer.echo(table, nl=False)


def _print(done: Repetition) -> None:
    interval = f"{done.ratio:.3f} [{done.lower:.3f}, {done.upper:.3f}]"
    typer.echo(f"{done.call:13} {interval} after {done.rounds} rounds: {done.answer}", err=True)
