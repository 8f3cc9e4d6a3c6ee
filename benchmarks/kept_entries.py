"""Measure leak detection in watched heaps, compared with "it rose at every heap scan".

A run has four processes, each with hundreds of containers and types that behave like those of real
servers; a leaking run has one leak among them.  Runs are leaking or healthy by construction, and
nothing here is fitted to the analysis.

    python -m benchmarks kept-entries --runs 300 --leaking 40 --seed 640000
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Annotated

import numpy as np
import typer

from benchmarks.watched_runs import LOADS, Leak, Watched, watched_run
from hybridbench.analysis.drivers.heap_growth import growing_heaps
from hybridbench.analysis.facts.censuses import heaps_of
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.kept import kept_findings
from hybridbench.analysis.record import RunRecord
from hybridbench.records.finding import VerdictKind

_ROSE = "rose at every scan"
# Runs alternate between no idle points and one per minute.
_IDLE_S = (0.0, 60.0)

LEAKS: Mapping[str, tuple[Leak, float]] = {
    "1 a request, 3 minutes": (Leak(), 180.0),
    "1 a request": (Leak(), 600.0),
    "1 in 20, no counter of its own": (Leak(share=0.05), 600.0),
    "1 a refused request (1 in 50)": (Leak(event="refused"), 600.0),
    "the same, among requests in flight": (Leak(event="refused", mixed=True), 600.0),
    "1 a token": (Leak(event="tokens", objects=""), 600.0),
    "16 KiB of malloc a request": (Leak(each=0, native_bytes=16384.0), 600.0),
}


@dataclass(frozen=True)
class _Answer:
    """One run's results: the verdict, whether it names the planted leak, and the baseline's."""

    verdict: str
    named: bool
    driver: str
    rate: float
    rose: bool  # the leak's path in a leaking run, any path in a healthy one


def main(
    runs: Annotated[int, typer.Option(help="Healthy runs.")] = 300,
    leaking: Annotated[int, typer.Option(help="Runs for each leak.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the first run.")] = 640_000,
    names: Annotated[int, typer.Option(help="Containers, and types, of each process.")] = 300,
) -> None:
    """How many watched runs are called a leak, and how many leaks are found."""
    healthy = [
        Watched(seed + i, load=LOADS[i % len(LOADS)], idle_s=_IDLE_S[i % 2], names=names)
        for i in range(runs)
    ]
    # Every third run restarts a process halfway; every seventh is short.
    healthy = [
        replace(
            run,
            restarts_s=(290.0,) if i % 3 == 2 else (),
            duration_s=180.0 if i % 7 == 6 else 600.0,
            census_s=15.0 if i % 7 == 6 else 30.0,
        )
        for i, run in enumerate(healthy)
    ]
    with ProcessPoolExecutor(mp_context=get_context("forkserver")) as pool:
        _print_healthy(list(pool.map(_answer, healthy)))
        for number, (name, (leak, duration_s)) in enumerate(LEAKS.items()):
            first = seed + 100_000 + 1_000 * number
            leaky = [
                Watched(
                    first + i,
                    duration_s=duration_s,
                    census_s=15.0 if duration_s < 300.0 else 30.0,
                    load=LOADS[i % len(LOADS)],
                    idle_s=60.0 if leak.native_bytes else _IDLE_S[i % 2],
                    names=names // 4,
                    leaks=(leak,),
                )
                for i in range(leaking)
            ]
            _print_leaking(name, list(pool.map(_answer, leaky)))


def _answer(run: Watched) -> _Answer:
    record = watched_run(run)
    found = kept_findings(growing_heaps(Facts.of(record)), ())
    leaks = [one for one in found if one.verdict is VerdictKind.LEAK]
    planted = {leak.path if leak.each else "malloc_in_use_bytes" for leak in run.leaks}
    named = [one for one in leaks if one.basis.as_data()["name"] in planted]
    verdict = "LEAK" if leaks else "INCONCLUSIVE" if found else "CLEAN"
    first = named[0] if named else None
    return _Answer(
        verdict,
        bool(named),
        "" if first is None else str(first.driver),
        0.0 if first is None else first.rates[0].value,
        bool(set(_rose(record)) & planted) if planted else any(_rose(record)),
    )


def _rose(record: RunRecord) -> Iterable[str]:
    """The paths whose entries increased at every heap scan after the first."""
    for heap in heaps_of(record, Facts.of(record).counters):
        inside = ~heap.first[1:]
        steps = np.diff(heap.entries.value, axis=1)[:, inside]
        for at in np.flatnonzero((steps > 0).all(axis=1)) if steps.shape[1] else ():
            yield heap.entries.names[at]


def _print_healthy(answers: list[_Answer]) -> None:
    verdicts = Counter(answer.verdict for answer in answers)
    rose = sum(answer.rose for answer in answers)
    said = ", ".join(f"{kind} {count}" for kind, count in sorted(verdicts.items()))
    typer.echo(f"healthy runs: {len(answers)}; {said}; {_ROSE}: {rose}")


def _print_leaking(name: str, answers: list[_Answer]) -> None:
    named = [answer for answer in answers if answer.named]
    drivers = Counter(answer.driver for answer in named).most_common(3)
    rates = np.quantile([answer.rate for answer in named] or [np.nan], [0.05, 0.5, 0.95])
    rose = sum(answer.rose for answer in answers)
    typer.echo(
        f"{name}: found {len(named)} of {len(answers)}; rate {rates[1]:.3g} ({rates[0]:.3g} to "
        f"{rates[2]:.3g}); drivers {drivers}; {_ROSE}: {rose}"
    )
