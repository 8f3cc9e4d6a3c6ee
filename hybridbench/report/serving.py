"""What a run served, as the table that a load test ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hybridbench.latency import RELATIVE_ERROR
from hybridbench.metrics import Unit
from hybridbench.records.verdict import ServingResult, Verdict
from hybridbench.report.document import Table
from hybridbench.report.wording import clock_text, number

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
_COLUMNS: Final = ("", "mean or total", "p50", "p90", "p99", "n")
_NUMERIC: Final = frozenset({1, 2, 3, 4, 5})


def serving_table(verdict: Verdict) -> Table:
    """A row for each thing that was measured; without rows where nothing was."""
    rows = tuple(
        (
            _LABELS.get(result.name, result.name),
            _value(result),
            *("" if p is None else _short(p) for p in (result.p50, result.p90, result.p99)),
            f"{result.count:,}",
        )
        for result in verdict.serving
    )
    note = ""
    if verdict.window_s is not None:
        start, end = (clock_text(t_s) for t_s in verdict.window_s)
        note = f"From {start} to {end}, without the pauses for checkpoints. "
    note += "n: requests behind the row"
    if any(result.p50 is not None for result in verdict.serving):
        note += "; of ITL, gaps between tokens. "
        note += f"Latencies are within {100 * RELATIVE_ERROR:g} %"
    note += "."
    return Table("Serving", _COLUMNS, rows, _NUMERIC, note)


def _value(result: ServingResult) -> str:
    if result.unit == Unit.RATIO:
        return f"{100 * result.value:.1f} %"
    if result.unit == Unit.COUNT:
        share = f" ({100 * result.value / result.count:.2g} %)" if result.count else ""
        return f"{result.value:,.0f}{share}"
    return _short(result.value)


def _short(value: float) -> str:
    """Three digits that mean something: more than 1 % of error leaves."""
    return number(value) if value < 1000 else f"{value:,.0f}"
