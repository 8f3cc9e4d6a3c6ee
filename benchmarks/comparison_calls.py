"""Measure how often comparisons are right, for known speeds on simulated machines.

The interim analyses and calls are those of ``compare``.  A block's log speed is the sum of the
machine's drift (an AR(1) process of 3% with coefficient 0.9), independent noise, and occasionally a
neighbour that takes CPU time.  Rounds are ABBA; like a live comparison, a simulated one ends at the
first interim analysis that decides.

    python -m benchmarks comparison-calls
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from hybridbench.analysis.comparison.compare import look, primaries
from hybridbench.analysis.comparison.metrics import COMPARED
from hybridbench.analysis.comparison.records import Block, ComparisonTerms

DRIFT, REMEMBERED = 0.03, 0.9
DISTURBED, DISTURBANCE = 0.1, 0.1

EFFECTS = (0.0, -0.02, -0.03, -0.05, 0.05)
NOISES = (0.01, 0.02, 0.03)


@dataclass(frozen=True)
class Machine:
    """Standard deviation of a block's log speed, and the share of disturbed blocks."""

    noise: float
    disturbed: float = 0.0


@dataclass(frozen=True)
class Row:
    """The results of repeated comparisons with one known effect on one machine.

    ``coverage`` is the share of comparisons whose last confidence interval contains the true ratio.
    """

    machine: Machine
    effect: float
    words: Counter[str]
    rounds: float  # mean
    coverage: float


TABLE_HEAD = (
    "| noise of a block | disturbed blocks | planted | FASTER | SAME | SLOWER | INCONCLUSIVE | "
    "rounds | interval held it |",
    "| --: | --: | --: | --: | --: | --: | --: | --: | --: |",
)


def table_row(row: Row) -> str:
    """Return one line of the table, in shares of the row's comparisons."""
    total = row.words.total()
    shares = [
        f"{row.words[word] / total:.3f}" for word in ("FASTER", "SAME", "SLOWER", "INCONCLUSIVE")
    ]
    cells = [
        f"{100.0 * row.machine.noise:.0f}%",
        f"{100.0 * row.machine.disturbed:.0f}%",
        f"{100.0 * row.effect:+.0f}%" if row.effect else "A/A",
        *shares,
        f"{row.rounds:.1f}",
        f"{row.coverage:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def run(repeats: int, seed: int = 5) -> Iterator[Row]:
    """Measure every effect on every machine."""
    for disturbed in (0.0, DISTURBED):
        for noise in NOISES:
            machine = Machine(noise, disturbed)
            for effect in EFFECTS:
                yield measure(machine, effect, repeats, seed)


def measure(machine: Machine, effect: float, repeats: int, seed: int) -> Row:
    """Simulate ``repeats`` comparisons with a version that is ``effect`` (a share) faster."""
    rng = np.random.default_rng(seed)
    terms = ComparisonTerms()
    words: Counter[str] = Counter()
    rounds = covered = 0
    for _ in range(repeats):
        blocks = simulate(rng, machine, effect, terms.looks[-1])
        took = next(
            (n for n in terms.looks if look(blocks[: 2 * n], terms).decided), terms.looks[-1]
        )
        (found,) = primaries(blocks[: 2 * took], terms)
        words[found.word] += 1
        rounds += took
        covered += found.lower <= 1.0 + effect <= found.upper
    return Row(machine, effect, words, rounds / repeats, covered / repeats)


def simulate(
    rng: np.random.Generator, machine: Machine, effect: float, rounds: int
) -> tuple[Block, ...]:
    """Return the blocks of ``rounds`` rounds of two versions, in time order."""
    drift = rng.normal() * DRIFT
    blocks = []
    for index in range(rounds):
        for position in range(2):
            version = position if index % 2 == 0 else 1 - position
            log = drift + rng.normal() * machine.noise
            if rng.random() < machine.disturbed:
                log -= abs(rng.normal()) * DISTURBANCE
            speed = math.exp(log) * (1.0 + effect * version)
            # Guards use up their share of alpha, as in a live comparison.
            values = {metric.name: 1.0 for metric in COMPARED}
            values["throughput_tokens_per_s"] = 1000.0 * speed
            blocks.append(Block(version, index, position, 2.0 * index + position, values))
            fresh = math.sqrt(1.0 - REMEMBERED**2) * DRIFT
            drift = REMEMBERED * drift + fresh * rng.normal()
    return tuple(blocks)


def main(
    repeat: Annotated[int, typer.Option(min=1, help="Comparisons of each row.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Seed of each row's machines.")] = 5,
) -> None:
    """How often `compare` is right: planted speeds on simulated machines, as a Markdown table.

    The interim analyses, margin and intervals are those of a live comparison.
    """
    typer.echo("\n".join(TABLE_HEAD))
    for row in run(repeat, seed):
        typer.echo(table_row(row))
