"""What makes a run prove nothing, or less than it was to prove, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hybridbench.analysis.findings.words import listed, times
from hybridbench.analysis.reading import mappings, number, numbers, text
from hybridbench.records.finding import Words
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Finding
from hybridbench.units import format_bytes, format_count, format_duration, format_percent

_SERIES_NAMED = 3
_PATHS_NAMED = 2


def too_few_samples(found: Finding) -> Words:
    """Nothing to judge."""
    samples = number(found.data, "samples")
    return Words(f"only {samples:,.0f} samples of the worker's memory were taken; run longer")


def coverage(found: Finding) -> Words:
    """The traffic missed what the profile is for."""
    return Words(
        f"the traffic did not cause the required events: {_first_paths(found.data)}",
        evidence=tuple(_all_paths(found.data)),
    )


def interrupted(found: Finding) -> Words:
    """Cut short before the paths of the profile were taken."""
    planned_s = number(found.data, "planned_s")
    of = f" of the planned {format_duration(planned_s)}" if planned_s else ""
    return Words(
        f"interrupted after {_seconds(found, 'at_s')}, before all required events were seen",
        evidence=(
            f"{_seconds(found, 'served_s')}{of} of traffic were served",
            f"not seen as often as required: {missing_paths(found.data)}",
        ),
    )


def missing_paths(data: Mapping[str, JsonValue]) -> str:
    """``retracts 11 of 1,000, aborts 0 of 5``."""
    return ", ".join(_paths(data))


def _first_paths(data: Mapping[str, JsonValue]) -> str:
    """As many as a headline has room for: ``retracts 11 of 1,000, aborts 0 of 5 and 7 more``."""
    return listed(_paths(data), _PATHS_NAMED)


def _all_paths(data: Mapping[str, JsonValue]) -> Iterable[str]:
    if len(_paths(data)) > _PATHS_NAMED:
        yield missing_paths(data)


def _paths(data: Mapping[str, JsonValue]) -> list[str]:
    return [
        f"{text(row, 'counter')} {number(row, 'seen'):,.0f} of {number(row, 'required'):,.0f}"
        for row in mappings(data, "missing")
    ]


def gaps(found: Finding) -> Words:
    """Samples are missing."""
    missing, judged = _seconds(found, "missing_s"), _seconds(found, "judged_s")
    return Words(f"{missing} of the judged {judged} have no samples")


def sampler_late(found: Finding) -> Words:
    """Samples came late."""
    share, limit = number(found.data, "share"), _seconds(found, "limit_s")
    return Words(f"{format_percent(share)} of the samples were more than {limit} late")


def swapping(found: Finding) -> Words:
    """The worker was swapped out."""
    size = format_bytes(number(found.data, "swapped_bytes"))
    return Words(f"the host swapped out {size} of the worker in the judged window")


def disk_full(found: Finding) -> Words:
    """Nothing more could be written."""
    return Words(f"the run could not be written to its end: {text(found.data, 'message')}")


def worker_silent(found: Finding) -> Words:
    """The worker was stopped."""
    silent, judged = _seconds(found, "silent_s"), _seconds(found, "judged_s")
    return Words(
        f"the worker did not answer for {silent} of the judged {judged}, as if it had been stopped"
    )


def clock_jump(found: Finding) -> Words:
    """The wall clock jumped."""
    return Words(
        f"the wall clock jumped by {_seconds(found, 'jumped_s')} in the judged window: the machine "
        "was suspended, or its clock was set"
    )


def starved(found: Finding) -> Words:
    """The worker did not get its processors."""
    stolen = text(found.data, "metric") == "host_steal_s"
    why = (
        "the hypervisor ran other machines on its processors"
        if stolen
        else "the worker waited for a CPU"
    )
    share = format_percent(number(found.data, "share"))
    return Words(f"{why} for {share} of the judged window")


def probe_stall(found: Finding) -> Words:
    """The bench itself stood in the way."""
    share = format_percent(number(found.data, "share"))
    return Words(f"heap scans and checkpoints stopped the engine for {share} of the judged window")


def metric_missing(found: Finding) -> Words:
    """A gated metric that was announced."""
    return Words(f"{found.subject} was declared by the target but never reported")


def workload_failed(found: Finding) -> Words:
    """The traffic ended before its time."""
    planned_s = number(found.data, "planned_s")
    planned = f" (planned traffic: {format_duration(planned_s)})" if planned_s else ""
    at = format_duration(found.since_s or 0.0)
    # The place comes first: a headline may be cut at its end.
    return Words(f"{text(found.data, 'message')}; no request was sent after {at}{planned}")


def unreadable(found: Finding) -> Words:
    """Samples that no measurement can have made."""
    counts = numbers(found.data, "samples")
    left_out = format_count(sum(counts.values()))
    return Words(
        f"{left_out} samples of {listed(list(counts), _SERIES_NAMED)} exceed "
        f"{number(found.data, 'largest'):g}, which no measurement can; they are left out",
        evidence=tuple(f"{name}: {times(count, 'sample')}" for name, count in counts.items()),
    )


def analysis_failed(found: Finding) -> Words:
    """A defect of the bench."""
    return Words(
        f"the analysis of {found.subject} failed ({text(found.data, 'error')}); its findings are "
        "missing",
        cause="a defect of hybridbench, not of the engine",
        evidence=("the other analyses are complete",),
    )


def bench_failed(found: Finding) -> Words:
    """A defect of the bench, beside the engine."""
    return Words(
        f"hybridbench failed in {found.subject} ({text(found.data, 'error')})",
        cause="a defect of hybridbench, or a machine that refused it what it needs",
        evidence=(f"the traceback is in {text(found.data, 'file')}; what was measured is judged",),
    )


def stopped_early(found: Finding) -> Words:
    """The machine ended the run."""
    return Words(f"stopped before the planned end: {text(found.data, 'message')}")


def _seconds(found: Finding, key: str) -> str:
    return format_duration(number(found.data, key))
