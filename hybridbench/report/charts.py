"""Select a report's charts: from series, build groups of charts in display units."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from hybridbench.analysis.record import RunRecord, Series
from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.metrics import MEMORY, Check, Kind, MetricSpec, Unit, spec_of
from hybridbench.records.verdict import MetricResult, Verdict
from hybridbench.report.decimate import per_minute
from hybridbench.report.document import Chart, ChartGroup, Ink, Legend, Line
from hybridbench.report.pool_charts import pool_charts
from hybridbench.report.quantity import Quantity
from hybridbench.report.serving import NOTHING_SERVED, served
from hybridbench.report.wording import capital, metric_title
from hybridbench.report.work_charts import as_served, work_charts

_BYTE_UNITS: Final = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))

# A memory chart spans at least this share of its level, so that it does not magnify noise.
_MEMORY_SPAN: Final = 0.04

_CLASSES_MAX: Final = 6
_LINES_PER_RATE_CHART: Final = 5
_RATE_CHARTS_MAX: Final = 4
_OTHERS_MAX: Final = 12
_CONTAINER: Final = "container."
# Families with charts of their own.
_CHARTED: Final = ("pool.", "events.", "instances.")


# A chart without data, and its lines: metrics under short labels.
_Plan: TypeAlias = tuple[Chart, Mapping[str, str]]

_MEMORY: Final[tuple[_Plan, ...]] = (
    (
        # On its own axis, because next to RSS a leak of a few MiB looks flat.
        Chart("private", "Private memory of the engine process", from_zero=False, wide=True),
        {"rss_anon_swap_bytes": "private (RssAnon + swap)"},
    ),
    (
        Chart(
            "rss",
            "Memory of the engine process with shared pages",
            from_zero=False,
            note="PSS counts a shared page in part: it drops while other processes share pages, as "
            "the forked process of a heap scan does, or another one with the same libraries.",
        ),
        {"rss_bytes": "resident (RSS)", "pss_bytes": "proportional (PSS)"},
    ),
    (
        Chart("device", "Memory of the device", from_zero=False, wide=True),
        {
            "device_allocated_bytes": "tensors (allocated)",
            "device_reserved_bytes": "reserved by PyTorch",
            "device_inactive_split_bytes": "free between tensors",
            "device_graph_bytes": "reserved for CUDA graphs",
            "device_driver_bytes": "outside PyTorch's allocator",
        },
    ),
    (
        Chart("pinned", "Pinned host memory", from_zero=False),
        {
            "pinned_allocated_bytes": "in use",
            "pinned_reserved_bytes": "reserved by PyTorch",
        },
    ),
    (
        Chart(
            "collectible-bytes",
            "Collectible memory",
            note="What a full collection would free, counted in a forked child.",
        ),
        {"gc_collectible_bytes": "collectible"},
    ),
    (
        Chart("collectible-objects", "Collectible objects"),
        {"gc_collectible_objects": "collectible"},
    ),
    (
        Chart("malloc", "C allocator", from_zero=False),
        {"malloc_in_use_bytes": "in use", "malloc_arena_bytes": "obtained from the kernel"},
    ),
    (
        Chart("blocks", "Python memory blocks", from_zero=False),
        {"allocated_blocks": "allocated"},
    ),
)
_TRAFFIC: Final[tuple[_Plan, ...]] = (
    (
        Chart(
            "throughput",
            "Throughput in computed tokens",
            legend=Legend.MEAN,
            note="Prompt tokens computed and tokens generated; those from the cache are left out.",
        ),
        {"throughput_tokens_per_s": "tokens"},
    ),
    (
        Chart("requests", "Requests finished", legend=Legend.MEAN),
        {"requests_per_s": "requests"},
    ),
    (
        Chart("ttft", "Time to first token (TTFT), by interval", legend=Legend.MEAN),
        {"ttft_ms_p50": "p50", "ttft_ms_p99": "p99"},
    ),
    (
        Chart("itl", "Inter-token latency (ITL), by interval", legend=Legend.MEAN),
        {"itl_ms_p50": "p50", "itl_ms_p99": "p99"},
    ),
    (
        Chart("concurrency", "Requests in the engine", legend=Legend.MEAN),
        {
            "running_requests": "running",
            "waiting_requests": "waiting",
            "max_running_requests": "largest batch so far",
        },
    ),
)
_OBSERVER: Final[tuple[_Plan, ...]] = (
    (
        Chart("sampler", "Sampler: delay and cost of a sample", legend=Legend.MEAN),
        {"sampler_late_s": "delay", "sampler_cost_s": "cost"},
    ),
    (
        Chart("harness", "Memory of the hybridbench process", from_zero=False),
        {"harness_rss_bytes": "RSS"},
    ),
)


def chart_groups(record: RunRecord, verdict: Verdict) -> tuple[ChartGroup, ...]:
    """Return all charts of a report, without charts and groups that have no data."""
    results = {result.metric: result for result in verdict.metrics}
    drivers = [finding.driver for finding in verdict.findings if finding.driver]
    groups = [
        ChartGroup("Memory", _planned(record, _MEMORY, results)),
        ChartGroup("Processes", _charts_of(record, results, _of_processes(record))),
        ChartGroup("Stale objects", _stray_charts(record)),
        ChartGroup("Pools", pool_charts(record)),
        ChartGroup("Traffic", _planned(record, _TRAFFIC, results, served(verdict))),
        ChartGroup("Cost of work", work_charts(record, served(verdict))),
        ChartGroup("Events", _event_charts(record, drivers)),
        ChartGroup(
            "Measurement overhead", _planned(record, _OBSERVER, results) + _share_chart(record)
        ),
    ]
    groups.append(ChartGroup("Other metrics that changed", _other_charts(record, results)))
    return tuple(_with_own_keys(group for group in groups if group.charts))


def _with_own_keys(groups: Iterable[ChartGroup]) -> Iterator[ChartGroup]:
    """Number charts with equal keys, which come from names that differ in case or punctuation.

    The page finds the curves of a chart by its key.
    """
    seen: Counter[str] = Counter()
    for group in groups:
        charts = []
        for chart in group.charts:
            seen[chart.key] += 1
            number = seen[chart.key]
            # No slug has two hyphens in a row.
            charts.append(replace(chart, key=f"{chart.key}--{number}") if number > 1 else chart)
        yield replace(group, charts=tuple(charts))


def level_chart(chart: Chart, unit: Unit) -> Chart:
    """Scale ``chart``, whose lines are levels in ``unit``, so that noise is not magnified."""
    least = 0.0 if chart.from_zero else _MEMORY_SPAN * _largest(chart.lines)
    return scaled(replace(chart, min_span=least), unit)


def scaled(chart: Chart, unit: Unit) -> Chart:
    """Scale ``chart``, whose lines have values in ``unit``, to a unit that suits their size."""
    name, factor = _display_unit(unit, _largest(chart.lines))
    lines = tuple(replace(line, value=line.value / factor) for line in chart.lines)
    return replace(chart, unit=name, lines=lines, min_span=chart.min_span / factor)


def _planned(
    record: RunRecord,
    plans: Sequence[_Plan],
    results: Mapping[str, MetricResult],
    known: Mapping[str, Quantity] = NOTHING_SERVED,
) -> tuple[Chart, ...]:
    charts = (_chart(record, plan, results, known) for plan in plans)
    return tuple(chart for chart in charts if chart is not None)


def _chart(
    record: RunRecord,
    plan: _Plan,
    results: Mapping[str, MetricResult],
    known: Mapping[str, Quantity] = NOTHING_SERVED,
) -> Chart | None:
    """Build a chart; ``known`` are values of the judged window, for the legend."""
    chart, metrics = plan
    lines: list[Line] = []
    fits: list[Line] = []
    unit = Unit.COUNT
    for colour, (name, label) in enumerate(metrics.items()):
        series = record.series.get(name)
        spec = spec_of(name)
        if series is None or spec is None or not len(series):
            continue
        unit = spec.unit
        lines.append(Line(label, series.t_s, series.value, colour=colour, shown=known.get(name)))
        if name in results:
            fits += _fit_lines(results[name], colour)
    if not lines:
        return None
    chart = as_served(replace(chart, lines=tuple(lines)))
    return level_chart(replace(chart, lines=(*lines, *fits)), unit)


def _fit_lines(result: MetricResult, colour: int) -> list[Line]:
    """Return the fitted line and the two edges of its band, if the analysis provided them."""
    t_s = np.asarray(result.fit_t_s, np.float64)
    edges = (result.band_lower, result.band_upper)
    if not t_s.size or len(result.fit_value) != t_s.size:
        return []
    lines = [Line("fit", t_s, np.asarray(result.fit_value, np.float64), Ink.FIT, colour)]
    if all(len(edge) == t_s.size for edge in edges):
        names = ("band, lower edge", "band, upper edge")
        lines += [
            Line(name, t_s, np.asarray(edge, np.float64), Ink.SPREAD, colour)
            for name, edge in zip(names, edges, strict=True)
        ]
    return lines


def _stray_charts(record: RunRecord) -> tuple[Chart, ...]:
    """Chart live instances that the engine does not reference, classes with the most first."""
    classes = {
        match[1] for name in record.series if (match := re.fullmatch(r"instances\.(.+)\.\w+", name))
    }
    charts = []
    for name in classes:
        metrics = {
            f"instances.{name}.stray": "stale",
            f"instances.{name}.collectible": "freed by a full collection",
            f"instances.{name}.retained": "surviving one",
        }
        plan = (Chart(f"stray-{slug(name)}", f"Stale {name} objects"), metrics)
        chart = _chart(record, plan, {})
        if chart is not None:
            charts.append(chart)
    charts.sort(key=lambda chart: (-_largest(chart.lines), chart.title))
    return tuple(charts[:_CLASSES_MAX])


def _event_charts(record: RunRecord, drivers: Sequence[str]) -> tuple[Chart, ...]:
    """Chart event counters as rates: those named by findings first, then by decreasing rate."""
    lines = []
    for name, series in sorted(record.series.items()):
        if name.startswith("events."):
            t_s, rate = per_minute(series.t_s, series.value)
            if rate.size and rate.max() > 0:
                lines.append(Line(name.removeprefix("events."), t_s, rate))
    lines.sort(key=lambda line: -float(line.value.mean()))
    driving = {driver.removeprefix("events.") for driver in drivers}
    named = [line for line in lines if line.label in driving]
    rest = [line for line in lines if line not in named]
    charts = []
    if named:
        charts.append(_rate_chart("drivers", "Drivers of the findings", named))
    for index in range(_RATE_CHARTS_MAX):
        part = rest[index * _LINES_PER_RATE_CHART : (index + 1) * _LINES_PER_RATE_CHART]
        if part:
            title = "Events" if index == 0 else f"Events, less frequent ({index + 1})"
            charts.append(_rate_chart(f"events-{index}", title, part))
    return tuple(charts)


def _rate_chart(key: str, title: str, lines: Sequence[Line]) -> Chart:
    inked = tuple(replace(line, colour=colour) for colour, line in enumerate(lines))
    return Chart(key=key, title=title, unit="per minute", lines=inked, legend=Legend.MEAN)


def _share_chart(record: RunRecord) -> tuple[Chart, ...]:
    """Chart the share of wall time that probes and the collector took from the engine loop."""
    lines = []
    parts = {"probe_stop_s": "probes", "gc_pause_s": "collector"}
    for colour, (name, label) in enumerate(parts.items()):
        series = record.series.get(name)
        if series is not None and len(series) > 1:
            t_s, per_min = per_minute(series.t_s, series.value)
            lines.append(Line(label, t_s, 100.0 * per_min / 60.0, colour=colour))
    if not lines:
        return ()
    title = "Time taken from the engine loop"
    note = "Should stay under 1%."
    return (
        Chart(
            "share",
            title,
            "% of time",
            tuple(lines),
            note=note,
            min_span=1.0,
            legend=Legend.MEAN,
        ),
    )


def _other_charts(record: RunRecord, results: Mapping[str, MetricResult]) -> tuple[Chart, ...]:
    """Chart levels and window statistics that have no other chart, if they ever changed."""
    plans = (*_MEMORY, *_TRAFFIC, *_OBSERVER)
    known = {name for _, metrics in plans for name in metrics}
    known.update(_of_processes(record))
    others = [n for n in sorted(record.series) if n not in known and not n.startswith(_CHARTED)]
    return _charts_of(record, results, others)


def _of_processes(record: RunRecord) -> list[str]:
    """Return the series of what may leak in each process with a role: memory first, by size."""
    found = []
    for name, series in record.series.items():
        spec = spec_of(name)
        if name != unlabelled(name) and spec is not None and spec.check is Check.TREND:
            size = float(series.value[-1]) if len(series) else 0.0
            found.append((unlabelled(name) != MEMORY, spec.unit is not Unit.BYTES, -size, name))
    return [name for *_, name in sorted(found)]


def _charts_of(
    record: RunRecord, results: Mapping[str, MetricResult], names: Iterable[str]
) -> tuple[Chart, ...]:
    charts = []
    for name in names:
        spec = spec_of(name)
        if spec is None or spec.kind is Kind.COUNTER or not _moved(record.series[name]):
            continue
        plan = Chart(
            f"other-{slug(name)}",
            _other_title(name),
            from_zero=spec.unit is not Unit.BYTES,
            legend=legend_of(spec),
        )
        label = "entries" if name.startswith(_CONTAINER) else "value"
        chart = _chart(record, (plan, {name: label}), results)
        charts += [] if chart is None else [chart]
    return tuple(charts[:_OTHERS_MAX])


def _other_title(name: str) -> str:
    if name.startswith(_CONTAINER):
        return f"Entries in {name.removeprefix(_CONTAINER).removesuffix('.len')}"
    return capital(metric_title(name))


def legend_of(spec: MetricSpec) -> Legend:
    """Choose the legend: for a statistic of single intervals, only a mean is meaningful."""
    return Legend.MEAN if spec.kind is Kind.WINDOW else Legend.LAST


def slug(name: str) -> str:
    """Return ``name`` as part of an HTML id."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _moved(series: Series) -> bool:
    return len(series) > 1 and bool(np.ptp(series.value) > 0)


def _largest(lines: Iterable[Line]) -> float:
    # A fit over several segments has a NaN at each border.
    sizes = (float(np.nanmax(np.abs(line.value))) for line in lines if line.value.size)
    return max(sizes, default=0.0)


def _display_unit(unit: Unit, largest: float) -> tuple[str, float]:
    if unit is Unit.BYTES:
        fitting = (pair for pair in _BYTE_UNITS if largest >= 0.9995 * pair[1])
        return next(fitting, ("B", 1.0))
    if unit is Unit.SECONDS and largest < 1.0:
        return "ms", 1e-3
    names = {Unit.PER_SECOND: "per second", Unit.COUNT: ""}
    return names.get(unit, unit.value), 1.0
