"""What a run served, as the table that a load test ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from hybridbench.analysis.comparison.records import Version
from hybridbench.latency import RELATIVE_ERROR
from hybridbench.metrics import Unit
from hybridbench.rates import number
from hybridbench.records.verdict import ServingResult, Verdict
from hybridbench.report.comparison_tables import letter
from hybridbench.report.document import Table
from hybridbench.report.wording import clock_text
from hybridbench.units import format_duration

_LABELS: Final[Mapping[str, str]] = {
    "requests_per_s": "Requests/s",
    "output_tokens_per_s": "Output tokens/s",
    "input_tokens_per_s": "Input tokens/s",
    "ttft_ms": "TTFT (ms)",
    "itl_ms": "ITL (ms)",
    "e2e_ms": "End-to-end (ms)",
    "errors": "Errors",
    "aborts": "Aborts",
    "hit_rate": "Cache hit rate",
}
_COUNTS: Final = frozenset({"errors", "aborts"})
# What no row of the table of metrics is about.
_NOT_COMPARED: Final = _COUNTS | {"output_tokens_per_s", "input_tokens_per_s", "e2e_ms"}
_SHARES: Final = ("p50", "p90", "p99")


def serving_table(verdict: Verdict) -> Table:
    """A row for each thing that was measured; without rows where nothing was."""
    timed = any(result.p50 is not None for result in verdict.serving)
    shares = _SHARES if timed else ()
    rows = tuple(
        (
            _LABELS.get(result.name, result.name),
            _value(result),
            *(_percentile(result, share) for share in shares),
            f"{result.count:,}",
        )
        for result in verdict.serving
    )
    note = ""
    if verdict.window_s is not None:
        start, end = (clock_text(t_s) for t_s in verdict.window_s)
        note = f"From {start} to {end}, without the pauses for checkpoints{_traffic(verdict)}. "
    note += "n: requests finished in that time (rates)"
    if timed:
        note += (
            ", first tokens (TTFT), gaps between tokens (ITL) and requests finished "
            "(end-to-end) in whole sampling intervals"
        )
    note += ", requests ended (errors, aborts), admissions (hit rate)."
    if timed:
        note += f" Latencies are rounded to {100 * RELATIVE_ERROR:g}%."
    columns = ("", "mean or total", *shares, "n")
    return Table("Serving", columns, rows, frozenset(range(1, len(columns))), note)


def _traffic(verdict: Verdict) -> str:
    """How long the traffic lasted between the pauses, which may be much less than the window."""
    for result in verdict.serving:
        if result.name == "requests_per_s" and result.value > 0:
            return f": {format_duration(result.count / result.value)} of traffic"
    return ""


def compared_serving(versions: Sequence[Version], *, interleaved: bool) -> Table:
    """What each version's own run served, side by side; without rows where nothing was measured.

    What the table of metrics has, over blocks, is not told again with other numbers; of versions
    that took turns there are only counts.
    """
    of_each = [{result.name: result for result in one.verdict.serving} for one in versions]
    rows: list[tuple[str, ...]] = []
    for name, label in _LABELS.items():
        found = [results.get(name) for results in of_each]
        if not any(found) or name not in (_COUNTS if interleaved else _NOT_COMPARED):
            continue
        rows.append((label, *("" if one is None else _value(one) for one in found)))
        for share in _SHARES:
            cells = tuple("" if one is None else _percentile(one, share) for one in found)
            if any(cells):
                rows.append((f"{label} {share}", *cells))
    columns = ("", *(letter(index) for index in range(len(versions))))
    note = (
        "Each version over the whole of its judged window; the first row of a latency is its mean."
    )
    return Table(
        "Serving",
        columns,
        tuple(rows),
        frozenset(range(1, len(columns))),
        "" if interleaved else note,
    )


def _percentile(result: ServingResult, share: str) -> str:
    value = {"p50": result.p50, "p90": result.p90, "p99": result.p99}[share]
    return "" if value is None else _short(value)


def _value(result: ServingResult) -> str:
    if result.unit == Unit.RATIO:
        return f"{100 * result.value:.1f}%"
    if result.unit == Unit.COUNT:
        share = f" ({100 * result.value / result.count:.2g}%)" if result.count else ""
        return f"{result.value:,.0f}{share}"
    return _short(result.value)


def _short(value: float) -> str:
    """Three digits that mean something: more than 1% of error leaves."""
    return number(value) if value < 1000 else f"{value:,.0f}"
