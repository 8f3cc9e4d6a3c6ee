"""The text of ``soak --dry-run``: measurements, plan, limits and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridbench.cli.options import ReportFormat
from hybridbench.foundation.safe_output import echo, emit, one_line
from hybridbench.foundation.units import format_byte_rate, format_bytes, format_duration
from hybridbench.records.codec import to_json
from hybridbench.records.json_value import JsonValue, json_text

if TYPE_CHECKING:
    from hybridbench.runs.plan import SoakPlan
    from hybridbench.runs.preview import Preview


def print_preview(plan: SoakPlan, output: ReportFormat) -> None:
    """Preview ``plan`` and print it, as JSON if ``output`` says so.

    Raises:
        ConfigError: the run could not start.
        RunDirectoryError: its results cannot be written.
        WorkerFailedError: its worker did not start.
    """
    from hybridbench.runs.preview import preview_soak

    preview = preview_soak(plan)
    if output is ReportFormat.JSON:
        emit(_json(preview))
    else:
        echo("\n".join(map(one_line, _lines(preview))))


def _json(preview: Preview) -> str:
    stall = preview.stall
    document: dict[str, JsonValue] = {
        "schema": "hybridbench.preview/1",
        **to_json(preview),
        "judged_s": preview.judged_s,
        "left_out": ["gc_census"] if stall is not None and stall.left_out else [],
    }
    return json_text(document)


def _lines(preview: Preview) -> list[str]:
    return [
        f"{preview.title}: dry run, no request was sent (worker built in "
        f"{format_duration(preview.boot_s)})",
        preview.model_note,
        "",
        *_seen(preview),
        "",
        *_plan(preview),
        "",
        *_cost(preview),
        *(["", "Warnings"] if preview.warnings else []),
        *(f"  ! {text}" for text in preview.warnings),
    ]


def _seen(preview: Preview) -> list[str]:
    return [
        f"Measured       {len(preview.metrics)} families of metrics; "
        f"{', '.join(preview.capabilities)}",
        *(f"Not measured   {text}" for text in preview.not_seen or ("none",)),
    ]


def _plan(preview: Preview) -> list[str]:
    lines = [
        f"Traffic        {format_duration(preview.duration_s)}: warm-up of about "
        f"{format_duration(preview.warmup_s)} (counted in requests), then "
        f"{format_duration(preview.judged_s)} judged",
        *([f"Trace          {preview.trace_note}"] if preview.trace_note else []),
        f"Cadence        a sample every {preview.sample_every_s:g} s, a heap scan every "
        f"{preview.heap_scan_every_s:.3g} s, a checkpoint every "
        f"{format_duration(preview.checkpoint_every_s)}",
    ]
    for one in preview.resolutions:
        smallest = format_byte_rate(one.smallest_per_h)
        limit = one.limit_per_h
        allowed = "no limit at this length" if limit is None else f"limit {format_byte_rate(limit)}"
        lines.append(f"Detection      {one.metric}: leaks of {smallest} or more; {allowed}")
    return lines


def _cost(preview: Preview) -> list[str]:
    free = preview.memory_free_bytes
    lines = [
        f"Disk           about {format_bytes(preview.disk_needed_bytes)} needed, "
        f"{format_bytes(preview.disk_free_bytes)} free",
        f"Memory         {format_bytes(preview.memory_now_bytes)} now, about "
        f"{format_bytes(preview.memory_needed_bytes)} during a heap scan"
        + ("" if free is None else f", limit {format_bytes(free)}"),
    ]
    stall = preview.stall
    if stall is not None:
        budget = "no limit" if stall.budget_s is None else f"limit {stall.budget_s * 1000:.0f} ms"
        lines.append(
            f"Heap scan      stops the engine for {stall.stop_s * 1000:.0f} ms ({stall.method}, "
            f"{stall.tracked_objects:,} objects; {budget}), takes {stall.child_s:.2g} s of a child"
        )
    return lines
