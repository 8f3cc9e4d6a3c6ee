"""The diagnosis of a run: as a section of its report, and as diagnosis.json for machines."""

from __future__ import annotations

from collections.abc import Iterable

from hybridbench import __version__
from hybridbench.analysis.diagnosis import Diagnosis, Holding, RungRow, diagnose
from hybridbench.analysis.findings.words import times
from hybridbench.analysis.record import RunRecord
from hybridbench.rates import amount
from hybridbench.records.codec import by_name, to_json
from hybridbench.records.events import Allocations, Reclaim
from hybridbench.records.json_value import JsonValue, json_text
from hybridbench.report.advice import again_command
from hybridbench.report.document import NO_TABLE, DiagnosisText, Table
from hybridbench.report.wording import clock_text
from hybridbench.rundir.layout import ALLOCATIONS, DIAGNOSIS_SCHEMA
from hybridbench.sentences.diagnosis import OBJECTS_MIN, bug_report, part_detail
from hybridbench.units import format_duration, format_percent

_RUNG_WORDS = {
    "rest": "idle, nothing released",
    "trim": "malloc_trim",
    "collect": "gc.collect, malloc_trim",
    "flush": "flush_cache, gc.collect, malloc_trim",
    "device": "the device's cache emptied",
}


def diagnosis_text(record: RunRecord) -> DiagnosisText | None:
    """The section of the report; None for a run without a diagnosis."""
    found = diagnose(record)
    if found is None:
        return None
    return DiagnosisText(
        paragraph=bug_report(found),
        split=_split_table(found),
        rungs=_rungs_table(found.rungs),
        holders=_holders_table(found),
        calls=_calls_table(found.allocations),
        cycles=_cycles(found),
        notes=found.notes,
    )


def diagnosis_json(record: RunRecord, found: Diagnosis) -> str:
    """The text of diagnosis.json."""
    document: dict[str, JsonValue] = {
        "schema": DIAGNOSIS_SCHEMA,
        "tool": {"name": "hybridbench", "version": __version__},
        "run_id": record.manifest.run_id or None,
        "paragraph": bug_report(found),
        "from_s": found.from_s,
        "to_s": found.to_s,
        "growth_bytes": found.growth_bytes,
        "rest_bytes": found.rest_bytes,
        "explained": found.explained,
        "parts": [
            {**to_json(part), "detail": part_detail(found, part.kind)} for part in found.parts
        ],
        "garbage": {**to_json(found.garbage), "cycles": list(map(by_name, found.garbage.cycles))},
        "holdings": [_holding(row) for row in found.holdings],
        "rungs": [to_json(row) for row in found.rungs],
        "sites": {name: to_json(site) for name, site in found.sites.items()},
        "views": list(map(by_name, found.views)),
        "allocations": _allocations(found.allocations),
        "notes": found.notes,
    }
    return json_text(document)


def _holding(row: Holding) -> JsonValue:
    stored = by_name(row.objects)
    # Its place among the paths of the survey.
    del stored["path"]
    return {**stored, "in_cache": row.in_cache}


def _allocations(found: Allocations | None) -> JsonValue:
    if found is None:
        return None
    sites = [by_name(site) for site in found.sites]
    return {"seconds": found.seconds, "requests": found.requests, "sites": sites}


def stored_evidence(record: RunRecord) -> list[str]:
    """Of a run without a diagnosis: what its samples show, and how to get the rest."""
    lines = ["This run recorded no diagnosis, and its worker process has ended."]
    garbage = record.series.get("gc_collectible_bytes")
    if garbage is not None and len(garbage):
        lines.append(
            f"The last heap scan found {amount(float(garbage.value[-1]), 'B')} of uncollected "
            f"garbage, the first {amount(float(garbage.value[0]), 'B')}."
        )
    memory = record.series.get("rss_anon_swap_bytes")
    if memory is not None and len(memory):
        change = amount(float(memory.value[-1] - memory.value[0]), "B", signed=True)
        lines.append(f"Private memory moved by {change} from the first sample to the last.")
    given = record.last_event(Reclaim)
    if given is not None:
        rest, trimmed = given.at_rest_bytes, given.after_trim_bytes
        flushed, collected = given.after_flush_bytes, given.after_collect_bytes
        lines.append(
            f"At the end malloc_trim released {amount(rest - trimmed, 'B')}, flushing the cache "
            f"{amount(trimmed - flushed, 'B')}, a full collection "
            f"{amount(flushed - collected, 'B')}."
        )
    again = again_command(record.manifest, "--diagnose", "always")
    again = again or "hybridbench soak ... --diagnose always"
    lines += ["To see holders and reference cycles, run again with a diagnosis:", f"  {again}"]
    return lines


def _split_table(found: Diagnosis) -> Table:
    if found.explained is None:
        # Parts of next to nothing would only mislead.
        return NO_TABLE
    rows = tuple(
        (
            part.kind.value,
            amount(part.size_bytes, "B", signed=True),
            format_percent(part.share, 1),
            part_detail(found, part.kind),
        )
        for part in found.parts
    )
    note = (
        f"Growth of idle private memory from {clock_text(found.from_s)} to "
        f"{clock_text(found.to_s)}: {amount(found.growth_bytes, 'B', signed=True)}; explained "
        f"{format_percent(found.explained)}."
    )
    return Table(
        "Where the growth is", ("part", "bytes", "share", "what"), rows, frozenset({1, 2}), note
    )


def _rungs_table(rungs: Iterable[RungRow]) -> Table:
    rows = tuple(
        (
            _RUNG_WORDS.get(row.name, row.name),
            amount(row.private_bytes, "B"),
            amount(row.gave_bytes, "B") if row.name != "rest" else "",
            "" if row.gave_at_baseline_bytes is None else amount(row.gave_at_baseline_bytes, "B"),
        )
        for row in rungs
    )
    columns = ("after", "private memory", "released", "at the baseline")
    return Table("Memory released by step", columns, rows, frozenset({1, 2, 3}))


def _holders_table(found: Diagnosis) -> Table:
    rows = tuple(
        (
            row.objects.type_name,
            f"{row.objects.count:,}" if row.objects.count else _entries(row),
            amount(row.objects.size_bytes, "B"),
            _held_how(row),
        )
        for row in found.holdings
        if found.explained is not None or row.objects.dragged
    )
    columns = ("class", "more", "bytes", "held by")
    return Table("Held objects that the baseline did not have", columns, rows, frozenset({1, 2}))


def _cycles(found: Diagnosis) -> tuple[str, ...]:
    if found.garbage.objects < OBJECTS_MIN:
        return ()
    return tuple(
        f"{format_percent(cycle.share)} of the sampled cycles: {cycle}"
        for cycle in found.garbage.cycles
    )


def _entries(row: Holding) -> str:
    return times(row.objects.entries, "entry", "entries")


def _calls_table(found: Allocations | None) -> Table:
    sites = () if found is None else found.sites
    rows = tuple(
        (amount(site.size_bytes, "B"), f"{site.count:,}", " < ".join(site.stack)) for site in sites
    )
    note = ""
    if found is not None:
        note = (
            f"{format_duration(found.seconds)} more of traffic, {found.requests:,} requests, then "
            f"a flush; for every stack: memray flamegraph --leaks {ALLOCATIONS}"
        )
    columns = ("bytes", "blocks", "allocated in, called by")
    return Table("Allocated and never freed", columns, rows, frozenset({0, 1}), note)


def _held_how(row: Holding) -> str:
    chain = " -> ".join(row.objects.chain) or row.objects.holder
    if row.objects.dragged:
        return f"only neighbours' pointers, mostly {row.objects.holder}: {chain}"
    return f"{chain} (in the cache)" if row.in_cache else chain
