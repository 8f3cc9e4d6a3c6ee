"""Compare how well the analysis and the usual detectors distinguish leaks from healthy memory.

Every detector judges every trace of the corpus once.  The analysis gets the series as for a run
without a ``steady`` event and returns the metric's result.

    python -m benchmarks detectors --traces 24 --seed 8530000 --kinds
    python -m benchmarks detectors --traces 6 --seed 5510000 --small
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Annotated

import numpy as np
import typer

from benchmarks import corpus as curves
from benchmarks import services, simulated
from benchmarks.corpus import LabelledTrace
from benchmarks.rival_detectors import (
    CLEAN,
    INCONCLUSIVE,
    LEAK,
    RIVALS,
    Answer,
    Thresholds,
)
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.analysis.trend.metric_trend import Effort, judge_trend
from hybridbench.foundation.metrics import declared
from hybridbench.records.manifest import Manifest

ANALYSIS = "this analysis"
MEMORY = "rss_anon_swap_bytes"

_MB = 1e6
_MARGIN_MB, _MARGIN_SHARE = 4.0 * 2**20 / _MB, 0.005


@dataclass(frozen=True)
class Corpus:
    """A generator of labelled traces, and the kinds to judge."""

    clean_kinds: Sequence[str]
    leak_kinds: Sequence[str]
    clean: Callable[[str, int], LabelledTrace]
    leaking: Callable[[str, int], LabelledTrace]


CORPORA: Mapping[str, Corpus] = {
    "curves": Corpus(
        curves.CLEAN_KINDS, curves.LEAK_KINDS, curves.clean_trace, curves.leaking_trace
    ),
    "processes": Corpus(
        simulated.CLEAN_KINDS,
        simulated.LEAK_KINDS,
        simulated.clean_trace,
        simulated.leaking_trace,
    ),
    "processes-held-out": Corpus(
        simulated.HELD_OUT_CLEAN_KINDS,
        simulated.HELD_OUT_LEAK_KINDS,
        simulated.clean_trace,
        simulated.leaking_trace,
    ),
    "services": Corpus(
        services.CLEAN_KINDS,
        services.LEAK_KINDS,
        services.clean_trace,
        services.leaking_trace,
    ),
}


@dataclass(frozen=True)
class Seen:
    """One trace, judged by one detector."""

    detector: str
    kind: str
    leaking: bool
    resolvable: bool
    word: str
    covered: bool | None  # whether the interval contains the true rate; None without an interval
    cpu_s: float


@dataclass(frozen=True)
class Row:
    """One detector's results on the corpus; counts, except for ``coverage`` and ``ms``."""

    detector: str
    clean: int
    false_alarms: int
    clean_inconclusive: int
    resolvable: int
    found: int
    called_clean: int
    coverage: float | None
    ms: float


def small_and_slow(trace: LabelledTrace, seed: int) -> LabelledTrace:
    """The trace scaled to a process of 5 to 300 MB over half a day to two weeks.

    Shapes, noise and resolvability are unchanged; only the floors in bytes differ.
    """
    rng = np.random.default_rng([seed, 77])
    base = float(np.exp(rng.uniform(np.log(5.0), np.log(300.0))))
    hours = float(np.exp(rng.uniform(np.log(12.0), np.log(336.0))))
    smaller = base / trace.base
    slower = hours * 3600.0 / float(trace.t_s[-1] - trace.t_s[0])
    return replace(
        trace,
        base=base,
        t_s=trace.t_s * slower,
        value=trace.value * smaller,
        rate=trace.rate * smaller / slower,
        growing=trace.growing * smaller / slower,
    )


def compare_detectors(
    traces: int, seed: int, jobs: int = 1, corpus_name: str = "curves"
) -> list[Row]:
    """Return a row for each detector, this analysis first, from ``traces`` of each kind.

    Args:
        traces: number of traces of each kind in the corpus.
        seed: seed of the first trace of each kind; the others follow it.
        jobs: number of worker processes; does not affect the answers.
        corpus_name: one of ``CORPORA``.
    """
    return rows(judge_corpus(traces, seed, jobs, corpus_name))


def judge_corpus(
    traces: int, seed: int, jobs: int = 1, corpus_name: str = "curves", *, small: bool = False
) -> list[Seen]:
    """Return every answer of every detector; ``small`` applies ``small_and_slow`` to the traces.

    Raises:
        KeyError: no corpus has that name.
    """
    chosen = CORPORA[corpus_name]
    seeds = range(seed, seed + traces)
    tasks = [
        _Task(corpus_name, False, kind, n, small) for kind in chosen.clean_kinds for n in seeds
    ]
    tasks += [_Task(corpus_name, True, kind, n, small) for kind in chosen.leak_kinds for n in seeds]
    if jobs == 1:
        return [seen for task in tasks for seen in _judge_one(task)]
    # A fork would copy locks held by this process's threads.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return [seen for part in pool.map(_judge_one, tasks, chunksize=8) for seen in part]


def rows(answers: Sequence[Seen]) -> list[Row]:
    """Return the table of the answers, a row for each detector in order of appearance."""
    names = dict.fromkeys(seen.detector for seen in answers)
    return [_row(name, [seen for seen in answers if seen.detector == name]) for name in names]


def by_kind(answers: Iterable[Seen]) -> list[tuple[str, Row]]:
    """Return the results of this analysis for each kind."""
    own = [seen for seen in answers if seen.detector == ANALYSIS]
    kinds = dict.fromkeys(seen.kind for seen in own)
    return [(kind, _row(ANALYSIS, [s for s in own if s.kind == kind])) for kind in kinds]


def analysis_answer(trace: LabelledTrace, limits: Thresholds) -> Answer:
    """Return the product's answer for a trace, with its declared floors and margins."""
    names = {MEMORY: trace.value * _MB}
    if trace.work is not None:
        names["events.finishes"] = np.round(trace.work)
    if trace.load is not None:
        names["running_requests"] = trace.load
    record = RunRecord(Manifest(), {n: Series(n, trace.t_s, v) for n, v in names.items()}, [])
    facts = Facts.of(record)
    if facts.window is None:
        return Answer(INCONCLUSIVE)
    result = judge_trend(facts, declared(MEMORY), Effort())
    rate = result.rate_per_hour
    if rate is None:
        return Answer(result.outcome)
    return Answer(result.outcome, rate.lower / _MB, rate.upper / _MB)


@dataclass(frozen=True)
class _Task:
    corpus: str
    leaking: bool
    kind: str
    seed: int
    small: bool


def _judge_one(task: _Task) -> list[Seen]:
    chosen, kind, leaking = CORPORA[task.corpus], task.kind, task.leaking
    trace = (chosen.leaking if leaking else chosen.clean)(kind, task.seed)
    if task.small:
        trace = small_and_slow(trace, task.seed)
    spec = declared(MEMORY)
    floor = max(spec.floor_per_hour / _MB, spec.floor_share_per_hour * trace.base)
    limits = Thresholds(floor, max(_MARGIN_MB, _MARGIN_SHARE * trace.base))
    seen = []
    for detector_name, detector in {ANALYSIS: analysis_answer, **RIVALS}.items():
        start_s = time.process_time()
        answer = detector(trace, limits)
        cpu_s = time.process_time() - start_s
        covered = None
        if answer.lower is not None and answer.upper is not None:
            covered = answer.lower <= trace.growing <= answer.upper
        word = answer.word
        seen.append(Seen(detector_name, kind, leaking, trace.resolvable, word, covered, cpu_s))
    return seen


def _row(name: str, answers: Sequence[Seen]) -> Row:
    clean = [seen for seen in answers if not seen.leaking]
    resolvable = [seen for seen in answers if seen.resolvable]
    told = [seen.covered for seen in answers if seen.covered is not None]
    return Row(
        name,
        len(clean),
        sum(seen.word == LEAK for seen in clean),
        sum(seen.word == INCONCLUSIVE for seen in clean),
        len(resolvable),
        sum(seen.word == LEAK for seen in resolvable),
        sum(seen.word == CLEAN for seen in resolvable),
        float(np.mean(told)) if told else None,
        1e3 * float(np.mean([seen.cpu_s for seen in answers])),
    )


def main(
    traces: Annotated[int, typer.Option(min=1, help="Traces of each kind.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first trace of each kind.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    kinds: Annotated[bool, typer.Option("--kinds", help="Also print each kind's results.")] = False,
    corpus: Annotated[str, typer.Option(help=f"One of {', '.join(CORPORA)}.")] = "curves",
    small: Annotated[
        bool, typer.Option("--small", help="Small processes, over half a day to two weeks.")
    ] = False,
) -> None:
    """The analysis against lines, ranks and rules of thumb, on labelled traces of memory.

    Curves: 23 healthy and 19 leaking kinds.  Processes: simulated mechanisms in pairs, half of the
    pairs held out.  Services: other mechanisms, never looked at.  Every detector sees every trace,
    none gets a steady event.
    """
    if corpus not in CORPORA:
        raise typer.BadParameter(
            f"{corpus} is unknown; one of {', '.join(CORPORA)}", param_hint="--corpus"
        )
    answers = judge_corpus(traces, seed, jobs, corpus, small=small)
    table = rows(answers)
    typer.echo(
        f"{table[0].clean} clean traces, {table[0].resolvable} leaks that can be resolved, "
        f"{traces} traces of each kind from seed {seed}"
    )
    head = ("false alarms", "found", "called clean", "inconclusive", "coverage", "ms/trace")
    typer.echo(_line("detector", head))
    for row in table:
        typer.echo(_line(row.detector, _figures(row)))
    for kind, row in by_kind(answers) if kinds else ():
        typer.echo(_line(kind, _figures(row)))


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:30}" + "".join(f"{cell:>15}" for cell in cells)


def _figures(row: Row) -> tuple[str, ...]:
    return (
        _share(row.false_alarms, row.clean),
        _share(row.found, row.resolvable),
        _share(row.called_clean, row.resolvable),
        _share(row.clean_inconclusive, row.clean),
        "-" if row.coverage is None else f"{row.coverage:.3f}",
        f"{row.ms:.1f}",
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f} ({part})" if whole else "-"
