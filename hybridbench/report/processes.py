"""A table of a run's processes: what each holds, how much it grows, and its restarts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from hybridbench.analysis.facts.processes import ProcessView, process_views
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.foundation.labels import labelled, whose
from hybridbench.foundation.metrics import MEMORY, Unit
from hybridbench.records.events import ProcessEnded, ProcessStarted
from hybridbench.records.finding import VerdictKind
from hybridbench.records.processes import signal_name
from hybridbench.records.verdict import Verdict
from hybridbench.report.document import Table
from hybridbench.report.quantity import SHARE, Form, Quantity, Text, Window, phrase, sure_text
from hybridbench.report.wording import NO_RATE, growth_of

_LEVELS: Final[Mapping[str, str]] = {
    "device_used_bytes": "device memory",
    "threads": "threads",
    "open_fds": "open files",
}
_ALWAYS: Final = frozenset({"threads", "open_fds"})
_CPU: Final = "worker_cpu_s"
_NOTE: Final = (
    "First to last of the present process in the judged window; growth is that of private memory, "
    "all restarts together; 100% CPU is one processor. Processes that leak come first, then the "
    "largest."
)


def processes_table(record: RunRecord, verdict: Verdict) -> Table:
    """Return a row for each process with a role; empty for a run of one process."""
    results = {result.metric: result for result in verdict.metrics}
    shares = {one.rate_per_hour.confidence for one in verdict.metrics if one.rate_per_hour}
    sure = f"{sure_text(shares.pop())} " if len(shares) == 1 else ""
    views = process_views(record)
    levels = {
        metric: column
        for metric, column in _LEVELS.items()
        if metric in _ALWAYS or any(metric in view.metrics for view in views)
    }
    columns = ("process", "private memory", "growth", f"{sure}interval", "CPU", *levels.values())
    rows = []
    for view in views:
        text, window = labelled("", view.labels), verdict.window_s
        result = results.get(f"{MEMORY}{text}")
        memory = _present(view, MEMORY, window)
        growth = None if result is None else growth_of(result)
        leaks = result is not None and result.outcome == VerdictKind.LEAK
        held = float(memory.value[-1]) if len(memory) else 0.0
        row: tuple[Text, ...] = (
            whose(text),
            _first_to_last(memory, text, window),
            NO_RATE if growth is None else growth.narrow,
            "none" if growth is None else growth.shown(Form.INTERVAL),
            _cpu(_present(view, _CPU, window), text, window),
            *(_first_to_last(_present(view, metric, window), text, window) for metric in levels),
            _pids(view),
            str(max(0, len(_started(view)) - 1)),
        )
        rows.append((not leaks, -held, row))
    ordered = tuple(row for *_, row in sorted(rows, key=lambda found: found[:2]))
    columns = (*columns, "pid", "restarts")
    wide = frozenset(range(1, len(columns)))
    return Table("Processes", columns, ordered, wide, _NOTE, optional=wide - {1, 2, 3, 4})


def _present(view: ProcessView, metric: str, window: Window) -> Series:
    """Return the samples of the latest process, in ``window`` if it has any there."""
    series = view.record.series.get(metric)
    if series is None or metric not in view.metrics:
        return Series(metric, np.empty(0), np.empty(0))
    starts = [event.t_s for event in _started(view)]
    own = series.between(starts[-1] if starts else 0.0, math.inf)
    judged = own if window is None else own.between(*window)
    return judged if len(judged) else own


def _first_to_last(series: Series, text: str, window: Window) -> Text:
    """Show both ends, or one value if they print the same."""
    if not len(series):
        return "not seen"
    unit = Unit.BYTES.value if series.name.endswith("_bytes") else ""
    ends = [
        Quantity(f"{end}.{series.name}{text}", float(value), unit, window, form=Form.LEVEL)
        for end, value in (("first", series.value[0]), ("last", series.value[-1]))
    ]
    return ends[-1] if str(ends[0]) == str(ends[1]) else phrase(ends[0], " → ", ends[1])


def _cpu(series: Series, text: str, window: Window) -> Text:
    if len(series) < 2:
        return ""
    share = (series.value[-1] - series.value[0]) / (series.t_s[-1] - series.t_s[0])
    return Quantity(f"cpu{text}", float(share), SHARE, window)


def _pids(view: ProcessView) -> str:
    """Return the last pid, and how that process ended if it did."""
    started, own = _started(view), labelled("", view.labels)
    ended = [e for e in view.record.all_events(ProcessEnded) if e.process == own]
    if not started:
        return ""
    pid = str(started[-1].pid)
    if not ended or ended[-1].t_s <= started[-1].t_s:
        return pid
    last = ended[-1]
    if last.signal:
        return f"{pid}, killed by {signal_name(last.signal)}"
    return f"{pid}, ended" if last.code is None else f"{pid}, exit code {last.code}"


def _started(view: ProcessView) -> list[ProcessStarted]:
    own = labelled("", view.labels)
    return [e for e in view.record.all_events(ProcessStarted) if e.process == own]
