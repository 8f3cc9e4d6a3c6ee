"""Recall as numbers and text: how many of the mutants killed by the engine's laws were found."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from hybridbench.analysis.distributions import wilson_interval
from hybridbench.defects.mutants import KINDS
from hybridbench.selftest.mutants import (
    CRASHED,
    DEAD,
    FINDINGS,
    FOUND,
    MISSED,
    UNREACHED,
    Measured,
    Soaked,
)

# What soaks should have found but did not; mutants that crash or never serve are not counted.
_MISSES: Final = (MISSED, UNREACHED)
_OUTCOMES: Final = (FOUND, *_MISSES, CRASHED, DEAD)


class Recall(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement, as stored in ``recall.json``.

    Attributes:
        half: the half of the mutants that was soaked; both if empty.
        tried: number of mutants tested with the engine's laws.
        killed: number of these that a law kills.
        healthy: the verdict of each workload without a mutant.
        outcomes: number of soaked mutants by kind of statement, then by outcome; empty before the
            first.
        listed: the soaked mutants that were not found, by name.
    """

    half: str
    tried: int
    killed: int
    healthy: dict[str, str]
    outcomes: dict[str, dict[str, int]]
    listed: tuple[Soaked, ...]

    @property
    def total(self) -> Counter[str]:
        """Soaked mutants by outcome."""
        total: Counter[str] = Counter()
        for counts in self.outcomes.values():
            total.update(counts)
        return total

    @property
    def false_alarms(self) -> list[str]:
        """Workloads in which something was found without a mutant."""
        return [workload for workload, verdict in self.healthy.items() if verdict in FINDINGS]


def recall_of(measured: Measured) -> Recall:
    """Summarise ``measured``."""
    by_kind = {kind: Counter[str]() for kind in KINDS if measured.soaked}
    for soaked in measured.soaked:
        by_kind[soaked.kind][soaked.outcome] += 1
    ordered = sorted(measured.soaked, key=lambda soaked: soaked.name)
    return Recall(
        half=measured.half,
        tried=measured.tried,
        killed=measured.killed,
        healthy=measured.healthy,
        outcomes={kind: dict(counts) for kind, counts in by_kind.items()},
        listed=tuple(soaked for soaked in ordered if soaked.outcome != FOUND),
    )


def markdown(recall: Recall) -> str:
    """Return a table by kind of statement, and lists of the mutants that count as misses.

    ``recall.json`` also names those that crashed or died.
    """
    lines = [
        f"| statement | recall (95 % interval) | {' | '.join(_OUTCOMES)} |",
        "|" + "---|" * (len(_OUTCOMES) + 2),
        *(_row(kind, Counter(counts)) for kind, counts in recall.outcomes.items()),
        _row("all", recall.total),
    ]
    for outcome in _MISSES:
        those = [soaked for soaked in recall.listed if soaked.outcome == outcome]
        if those:
            lines += ["", f"{outcome.capitalize()}:", "", *map(_item, those)]
    return "\n".join(lines) + "\n"


def summary(recall: Recall) -> str:
    """Summarise the measurement in one sentence."""
    total = recall.total
    half = f" of half {recall.half}" if recall.half else ""
    counts = ", ".join(f"{total[outcome]} {outcome}" for outcome in _OUTCOMES)
    return (
        f"The laws kill {recall.killed} of {recall.tried} mutants{half}; soaked were "
        f"{total.total()}: {counts}; recall {_share(total)}."
    )


def _row(kind: str, counts: Counter[str]) -> str:
    numbers = " | ".join(str(counts[outcome]) for outcome in _OUTCOMES)
    return f"| {kind} | {_share(counts)} | {numbers} |"


def _share(counts: Counter[str]) -> str:
    found, trials = counts[FOUND], sum(counts[outcome] for outcome in (FOUND, *_MISSES))
    if not trials:
        return "-"
    low, high = wilson_interval(found, trials)
    return f"{found} of {trials}, {found / trials:.0%} ({low:.0%} to {high:.0%})"


def _item(soaked: Soaked) -> str:
    came = f" ({soaked.workload}: {soaked.verdict})" if soaked.workload else ""
    return f"- `{soaked.mutant}` `{soaked.name}`{came}"


def to_json(recall: Recall) -> bytes:
    """Encode as stored in ``recall.json``; ``read`` decodes it."""
    return msgspec.json.format(msgspec.json.encode(recall), indent=1) + b"\n"


def read(text: bytes) -> Recall:
    """Return the measurement that ``to_json`` wrote.

    Raises:
        msgspec.DecodeError: the text is not a measurement.
    """
    return msgspec.json.decode(text, type=Recall)
