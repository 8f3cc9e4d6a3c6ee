"""What a run served, as a table like the one at the end of a load test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from hybridbench.analysis.comparison.records import Version
from hybridbench.foundation.latency import RELATIVE_ERROR
from hybridbench.foundation.metrics import Unit
from hybridbench.records.manifest import OBSERVED
from hybridbench.records.verdict import ServingResult, Verdict
from hybridbench.report.comparison_tables import letter
from hybridbench.report.document import Table
from hybridbench.report.quantity import (
    SHARE,
    Form,
    Quantity,
    Text,
    Window,
    length,
    moment,
    phrase,
    share_text,
)

_LABELS: Final[Mapping[str, str]] = {
    "requests_per_s": "Requests/s",
    "output_tokens_per_s": "Output tokens/s",
    "input_tokens_per_s": "Input tokens/s",
    "ttft_ms": "TTFT (ms)",
    "itl_ms": "ITL (ms)",
    "e2e_ms": "End-to-end (ms)",
    "late_ms": "Client late by (ms)",
    "errors": "Errors",
    "aborts": "Aborts",
    "hit_rate": "Cache hit rate",
}
# What the sample size of a row counts, if not finished requests.
_FINISHED: Final = "finished"
_COUNTED: Final[Mapping[str, str]] = {
    "ttft_ms": "first tokens",
    "itl_ms": "token gaps",
    "late_ms": "looks at the clock",
    "errors": "ended",
    "aborts": "ended",
    "hit_rate": "admissions",
}
_COUNTS: Final = frozenset({"errors", "aborts"})
# Quantities that the table of metrics does not have.
_NOT_COMPARED: Final = _COUNTS | {"output_tokens_per_s", "input_tokens_per_s", "e2e_ms"}
_TIMES: Final = frozenset({"ttft_ms", "itl_ms"})
NOTHING_SERVED: Final[Mapping[str, Quantity]] = {}
_SHARES: Final = ("p50", "p90", "p99")


def serving_table(verdict: Verdict) -> Table:
    """Return a row for each quantity measured; empty without any."""
    timed = any(result.p50 is not None for result in verdict.serving)
    shares = _SHARES if timed else ()
    window = verdict.window_s
    rows = tuple(
        (
            _LABELS.get(result.name, result.name),
            _value(result, window),
            *(_percentile(result, share, window) for share in shares),
            Quantity(f"served.{_COUNTED.get(result.name, _FINISHED)}", result.count, window=window),
        )
        for result in verdict.serving
    )
    lead: list[Text] = []
    if window is not None:
        start, end = moment("judged from", window[0]), moment("judged to", window[1])
        pauses = ", without the pauses for checkpoints"
        lead = ["From ", start, " to ", end, pauses, *_traffic(verdict), ". "]
    note = "n: requests finished (rates"
    if timed:
        note += ", end-to-end), first tokens (TTFT), gaps between tokens (ITL"
    note += "), requests ended (errors, aborts), admissions (hit rate). Errors include refusals."
    if any(result.name == "late_ms" for result in verdict.serving):
        note += " Latencies count from when a request was due, or in a closed loop, sent."
    if timed:
        note += f" Latencies are rounded to {share_text(RELATIVE_ERROR)}."
    columns = ("", "mean or total", *shares, "n")
    numeric = frozenset(range(1, len(columns)))
    return Table("Serving", columns, rows, numeric, phrase(*lead, note))


def _traffic(verdict: Verdict) -> Sequence[Text]:
    """Report the length of the traffic between pauses, which may be much less than the window."""
    for result in verdict.serving:
        if result.name == "requests_per_s" and result.value > 0:
            traffic = length("traffic", result.count / result.value, verdict.window_s)
            return ": ", traffic, " of traffic in whole sampling intervals"
    return ()


def compared_serving(versions: Sequence[Version], *, interleaved: bool) -> Table:
    """Return what each version's own run served, side by side; empty if nothing was measured.

    Quantities that the table of metrics has, by blocks, are not repeated with different numbers;
    for interleaved versions only counts remain.  Blocks do not contain times of watched servers.
    """
    watched = any(one.manifest.target.kind == OBSERVED for one in versions)
    shown = _COUNTS if interleaved else _NOT_COMPARED | (_TIMES if watched else frozenset())
    of_each = [{result.name: result for result in one.verdict.serving} for one in versions]
    rows: list[tuple[Text, ...]] = []
    for name, label in _LABELS.items():
        found = [results.get(name) for results in of_each]
        if not any(found) or name not in shown:
            continue
        windows = [(version.verdict.window_s, letter(i)) for i, version in enumerate(versions)]
        pairs = list(zip(found, windows, strict=True))
        rows.append((label, *("" if one is None else _value(one, *of) for one, of in pairs)))
        for share in _SHARES:
            cells = tuple("" if one is None else _percentile(one, share, *of) for one, of in pairs)
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


def _percentile(result: ServingResult, share: str, window: Window, of: str = "") -> Text:
    value = {"p50": result.p50, "p90": result.p90, "p99": result.p99}[share]
    if value is None:
        return ""
    quantity = _quantity(result, value, window, of)
    return replace(quantity, name=f"{quantity.name}.{share}", form=Form.PLAIN)


def served(verdict: Verdict) -> Mapping[str, Quantity]:
    """Return the table's value of each metric, for use elsewhere."""
    results = {result.name: result for result in verdict.serving}
    window = verdict.window_s
    found = {name: _quantity(result, result.value, window) for name, result in results.items()}
    for name, result in results.items():
        for share in _SHARES:
            one = _percentile(result, share, window)
            if isinstance(one, Quantity):
                found[f"{name}_{share}"] = one
    return found


def _value(result: ServingResult, window: Window, of: str = "") -> Text:
    quantity = _quantity(result, result.value, window, of)
    if result.unit != Unit.COUNT or not result.count:
        return quantity if result.unit == Unit.RATIO else quantity.shown(Form.PLAIN)
    share = Quantity(f"{quantity.name}.share", result.value / result.count, SHARE, window, of=of)
    return phrase(quantity, " (", share, ")")


def _quantity(result: ServingResult, value: float, window: Window, of: str = "") -> Quantity:
    unit = SHARE if result.unit == Unit.RATIO else result.unit
    return Quantity(f"served.{result.name}", value, unit, window, count=result.count, of=of)
