"""Parse thresholds such as ``rss.slope<200MiB/h``, before a run starts.

An unknown name or unit is an error that suggests the nearest known one: a threshold that silently
always holds is worse than none.  ``rss<200MiB/h`` is a threshold on a column of a file; the file
defines what the name and the unit mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum

from hybridbench.foundation.metrics import METRICS, Kind, MetricSpec, Unit, declared, spec_of
from hybridbench.foundation.units import PER_HOUR, Amount, parse_amount


class Stat(StrEnum):
    """The statistic compared with the limit, over the judged window unless noted otherwise."""

    SLOPE = "slope"  # growth per hour or per event, with its interval
    SLOPE_LOWER = "slope.lower"  # the lower bound of that interval
    SLOPE_UPPER = "slope.upper"  # the upper bound
    MEAN = "mean"
    P50 = "p50"
    P95 = "p95"
    P99 = "p99"
    MIN = "min"  # of all raw samples
    MAX = "max"
    LAST = "last"
    LAST_FIRST_RATIO = "last_first_ratio"  # the last third of the window over the first
    RATIO = "ratio"  # B over A; only in `hybridbench compare`


GROWTH = frozenset({Stat.SLOPE, Stat.SLOPE_LOWER, Stat.SLOPE_UPPER})
EXTREMES = frozenset({Stat.MIN, Stat.MAX})
# Quotients of two values of the metric, which have no unit.
SHARES = frozenset({Stat.LAST_FIRST_RATIO, Stat.RATIO})
HOUR = "h"
_POOLS = ("kv", "swa", "mamba", "req", "host_kv", "host_swa", "host_mamba")

# Short names.  As in a profile's limits, rss is the gated private memory.
ALIASES: Mapping[str, str] = {
    "rss": "rss_anon_swap_bytes",
    "memory": "rss_anon_swap_bytes",
    "rest": "rest_anon_swap_bytes",
    "collectible": "gc_collectible_bytes",
    "fds": "open_fds",
    "throughput": "throughput_tokens_per_s",
    "requests": "requests_per_s",
    **{f"pool.{pool}.free": f"pool.{pool}.available" for pool in _POOLS},
}
# A sample has the median and the 99th percentile of its interval's latencies, no other quantile.
_LATENCIES: Mapping[str, Mapping[str, str]] = {
    name: {"p50": f"{name}_ms_p50", "p99": f"{name}_ms_p99"} for name in ("ttft", "itl")
}
# The usual statistic for each kind of metric.
_USUAL = {
    Kind.LEVEL: Stat.SLOPE,
    Kind.COUNTER: Stat.SLOPE,
    Kind.WINDOW: Stat.P50,
    Kind.QUOTIENT: Stat.MEAN,
    Kind.BLOCK: Stat.RATIO,
}
# Longest first, so that slope.lower is not parsed as a statistic "lower" of a metric "slope".
_STATS = sorted(Stat, key=len, reverse=True)
_OPERATOR = re.compile(r"<=|>=|<|>")
_TIMES_MS = {"ms": 1.0, "s": 1000.0}
_COLUMN_FORM = "write NAME<200MiB/h, or NAME<5/h for a count (per h, min, s or d)"
_FORM = "write METRIC.STAT<LIMIT, for example rss.slope<200MiB/h or throughput.p50>900/s"


@dataclass(frozen=True)
class Threshold:
    """One threshold.

    Args:
        text: as written.
        metric: full declared name.
        stat: the statistic compared with the limit.
        operator: "<", "<=", ">" or ">="; the relation that must hold.
        limit: in the metric's own unit; for growth per ``per``; for a quotient a plain number.
        per: for growth: "h", or the bare name of the event counter; empty otherwise.
    """

    text: str
    metric: str
    stat: Stat
    operator: str
    limit: float
    per: str = ""

    @property
    def spec(self) -> MetricSpec:
        """The declaration of its metric."""
        return declared(self.metric)

    @property
    def wants_less(self) -> bool:
        return self.operator.startswith("<")

    def holds(self, value: float) -> bool:
        """Whether ``value`` is on the right side of the limit."""
        strictly = value < self.limit if self.wants_less else value > self.limit
        return strictly or (len(self.operator) == 2 and value == self.limit)


def parse_threshold(text: str) -> Threshold:
    """Parse a threshold on a metric.

    Raises:
        ValueError: a clause that quotes the text and says what is wrong and how to correct it.
    """
    written = text.strip()
    sign = _OPERATOR.search(written)
    if sign is None or not written[: sign.start()].strip():
        raise ValueError(f"'{written}' is not a threshold; {_FORM}")
    name, limit = written[: sign.start()].strip(), written[sign.end() :].strip()
    try:
        metric, stat = _metric_and_stat(name)
        if stat in GROWTH:
            amount, per = _growth_limit(limit, metric)
        else:
            unit = Unit.RATIO if stat in SHARES else declared(metric).unit
            amount, per = _limit(limit, unit, name), ""
    except ValueError as error:
        raise ValueError(f"'{written}': {error}") from error
    return Threshold(written, metric, stat, sign.group(), amount, per)


def parse_thresholds(texts: Iterable[str]) -> tuple[Threshold, ...]:
    """Parse all thresholds, in order, without duplicates.

    Raises:
        ValueError: as from ``parse_threshold``, for the first invalid one.
    """
    return tuple(parse_threshold(text) for text in dict.fromkeys(text.strip() for text in texts))


@dataclass(frozen=True)
class ColumnThreshold:
    """A limit on a column's growth; ``limit`` need not be in the column's unit."""

    text: str
    name: str
    limit: Amount

    def per_hour(self, unit: Unit) -> float:
        """The limit per hour in ``unit``, the column's; a bare number is in that unit already.

        Raises:
            ValueError: a clause; the limit's unit does not match the column's.
        """
        limit = self.limit
        bare = not limit.unit and unit is not Unit.BYTES
        value = limit.number if bare else _in_unit(replace(limit, per=""), unit)
        if value is not None:
            return value * PER_HOUR[limit.per]
        if unit is Unit.BYTES:
            raise ValueError(
                f"'{limit.digits}{limit.unit}' is not a size; write 512MiB (2^20) or 512MB (10^6)"
            )
        raise ValueError(
            f"{self.name} is not known to be in {limit.unit}; give it a unit with --metric "
            f"'{self.name}:{limit.unit}', or write {limit.digits}/{limit.per}"
        )


def parse_column_threshold(text: str) -> ColumnThreshold:
    """Parse a threshold on a column.

    Raises:
        ValueError: a clause with the accepted form.
    """
    name, less, limit = text.partition("<")
    amount = parse_amount(limit.removeprefix("="))
    if (
        not (less and name.strip())
        or amount is None
        or amount.minus
        or amount.per not in PER_HOUR
        or not (amount.unit.isalpha() or not amount.unit)
    ):
        raise ValueError(f"not a threshold; {_COLUMN_FORM}")
    return ColumnThreshold(text, name.strip(), amount)


def _metric_and_stat(name: str) -> tuple[str, Stat]:
    """The metric's full name, and the statistic."""
    whole = _in_full(name)
    if whole is not None:
        raise ValueError(f"a statistic is missing; write {name}.{_USUAL[declared(whole).kind]}")
    for stat in _STATS:
        if name.endswith(f".{stat}"):
            metric = name.removesuffix(f".{stat}")
            return _latency(metric, stat) if metric in _LATENCIES else _checked(metric, stat)
    head, _, last = name.rpartition(".")
    if head in _LATENCIES:
        raise ValueError(_not_sampled(head, last))
    if _in_full(head) is not None:
        raise ValueError(f"{last} is not a statistic; {_nearest(last, list(Stat))}")
    raise ValueError(_unknown(head or name))


def _checked(name: str, stat: Stat) -> tuple[str, Stat]:
    metric = _in_full(name)
    if metric is None:
        raise ValueError(_unknown(name))
    kind = declared(metric).kind
    if kind is Kind.COUNTER and stat not in GROWTH:
        raise ValueError(f"{name} only counts up; write {name}.slope<LIMIT/h or /request")
    if kind is Kind.BLOCK and stat is not Stat.RATIO:
        raise ValueError(f"{name} exists only in a comparison; write {name}.ratio<1.03")
    if kind is Kind.QUOTIENT and stat not in (Stat.MEAN, *SHARES):
        allowed = ", ".join(f"{name}.{s.value}" for s in (Stat.MEAN, *SHARES))
        raise ValueError(f"{name} is measured only for the whole window; write one of {allowed}")
    return metric, stat


def _latency(name: str, stat: Stat) -> tuple[str, Stat]:
    sampled = _LATENCIES[name]
    if stat in sampled:
        return sampled[stat], Stat.P50
    if stat is Stat.SLOPE or stat in SHARES:
        return sampled["p50"], stat
    raise ValueError(_not_sampled(name, stat))


def _not_sampled(name: str, stat: str) -> str:
    return (
        f"{name}.{stat} is not measured: a sample keeps the median and the 99th percentile of its "
        f"interval; write {name}.p50 or {name}.p99"
    )


def _in_full(name: str) -> str | None:
    """The full metric name for ``name``; None if there is no such metric."""
    full = ALIASES.get(name, name)
    spec = spec_of(full)
    if spec is None or "*" in full or full.count(".") != spec.name.count("."):
        return None
    # The pools are known; members of families such as events.* are known only in a run.
    if spec.name.startswith("pool.") and full.split(".")[1] not in _POOLS:
        return None
    return full


def _unknown(name: str) -> str:
    names = [spec.name for spec in METRICS if "*" not in spec.name]
    names += [
        spec.name.replace("*", pool)
        for spec in METRICS
        if spec.name.startswith("pool.")
        for pool in _POOLS
    ]
    return f"no metric is called {name}; {_nearest(name, [*ALIASES, *_LATENCIES, *names])}"


def _nearest(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "docs/reference/thresholds.md lists them"


def _growth_limit(limit: str, metric: str) -> tuple[float, str]:
    """The limit per hour or per event, and "h" or the event's counter."""
    amount, slash, per = limit.rpartition("/")
    if not slash or not amount:
        raise ValueError(
            f"{limit!r} is not a rate; add a unit of time or an event, such as /h or /request"
        )
    value = _limit(amount, declared(metric).unit, metric)
    per = per.strip()
    if per in PER_HOUR:
        return value * PER_HOUR[per], HOUR
    counter = "finishes" if per == "request" else per
    if not re.fullmatch(r"[a-z][a-z0-9_]*", counter):
        raise ValueError(
            f"{per!r} is neither a time nor an event; write h, min, s, d, request or one of the "
            "engine's counters, such as session_closes"
        )
    return value, counter


def _limit(text: str, unit: Unit, name: str) -> float:
    """Convert ``text`` to ``unit``; refuse a bare number whose unit would be a guess."""
    amount = parse_amount(text)
    if amount is None:
        raise ValueError(f"{text!r} is not a limit; write {_examples(unit)}")
    value = _in_unit(amount, unit)
    if value is None:
        written = f"{amount.unit}/{amount.per}" if amount.per else amount.unit
        said = f"{written} is not a unit of {name}" if written else f"{text} has no unit"
        raise ValueError(f"{said}; write {_examples(unit)}")
    return value


def _in_unit(amount: Amount, unit: Unit) -> float | None:
    if unit is Unit.PER_SECOND:
        if amount.unit not in ("", "1") or amount.per not in ("s", "min", "h"):
            return None
        return amount.number * PER_HOUR[amount.per] / 3600.0
    if amount.per:
        return None
    if unit is Unit.BYTES:
        size = amount.in_bytes
        return None if size is None else float(size)
    if unit in (Unit.MILLISECONDS, Unit.SECONDS):
        in_ms = _TIMES_MS.get(amount.unit)
        scale = 1.0 if unit is Unit.MILLISECONDS else 1e-3
        return None if in_ms is None else amount.number * in_ms * scale
    if unit is Unit.RATIO:
        return {"": amount.number, "%": amount.number / 100.0}.get(amount.unit)
    return amount.number if amount.unit in ("", unit.value) else None


def _examples(unit: Unit) -> str:
    return {
        Unit.BYTES: "200MiB (2^20) or 200MB (10^6)",
        Unit.MILLISECONDS: "250ms or 1.5s",
        Unit.SECONDS: "250ms or 1.5s",
        Unit.PER_SECOND: "900/s",
        Unit.RATIO: "0.97 or 97%",
        Unit.COUNT: "a plain number",
        Unit.SLOTS: "a plain number or 3slots",
    }[unit]


def limit_text(text: str) -> str:
    """The limit as written in a threshold, after its operator."""
    at = _OPERATOR.search(text)
    return text if at is None else text[at.end() :].strip()
