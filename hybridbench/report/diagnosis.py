"""A run's diagnosis, as a section of its report and as diagnosis.json for programs."""

from __future__ import annotations

from collections.abc import Iterable

from hybridbench import __version__
from hybridbench.analysis.diagnosis import Diagnosis, Holding, StageRow, diagnose
from hybridbench.analysis.diagnosis_words import OBJECTS_MIN, bug_report, part_detail
from hybridbench.analysis.record import RunRecord
from hybridbench.records.codec import by_name, to_json
from hybridbench.records.events import Allocations, Reclaim
from hybridbench.records.json_value import JsonValue, json_text
from hybridbench.report.advice import again_command
from hybridbench.report.document import NO_TABLE, DiagnosisText, Table
from hybridbench.report.quantity import (
    SHARE,
    Phrase,
    Quantity,
    Text,
    length,
    moment,
    phrase,
    size,
)
from hybridbench.rundir.layout import ALLOCATIONS, DIAGNOSIS_SCHEMA

_STAGE_WORDS = {
    "rest": "idle, nothing released",
    "trim": "malloc_trim",
    "collect": "gc.collect, malloc_trim",
    "flush": "flush_cache, gc.collect, malloc_trim",
    "device": "the device's cache emptied",
}


def diagnosis_text(record: RunRecord) -> DiagnosisText | None:
    """Return the section of the report; None for a run without a diagnosis."""
    found = diagnose(record)
    if found is None:
        return None
    return DiagnosisText(
        paragraph=bug_report(found),
        split=_split_table(found),
        stages=_stages_table(found.stages),
        holders=_holders_table(found),
        calls=_calls_table(found.allocations),
        cycles=_cycles(found),
        notes=found.notes,
    )


def diagnosis_json(record: RunRecord, found: Diagnosis) -> str:
    """Return the text of diagnosis.json."""
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
        "rungs": [to_json(row) for row in found.stages],
        "sites": {name: to_json(site) for name, site in found.sites.items()},
        "views": list(map(by_name, found.views)),
        "allocations": _allocations(found.allocations),
        "notes": found.notes,
    }
    return json_text(document)


def _holding(row: Holding) -> JsonValue:
    stored = by_name(row.objects)
    # An internal path of the survey.
    del stored["path"]
    return {**stored, "in_cache": row.in_cache}


def _allocations(found: Allocations | None) -> JsonValue:
    if found is None:
        return None
    sites = [by_name(site) for site in found.sites]
    return {"seconds": found.seconds, "requests": found.requests, "sites": sites}


def stored_evidence(record: RunRecord) -> list[str]:
    """Describe what the samples of a run without a diagnosis show, and how to get the rest."""
    lines = ["This run recorded no diagnosis, and its worker process has ended."]
    garbage = record.series.get("gc_collectible_bytes")
    if garbage is not None and len(garbage):
        lines.append(
            f"The last heap scan found {size('garbage', float(garbage.value[-1]))} of uncollected "
            f"garbage, the first {size('garbage', float(garbage.value[0]))}."
        )
    memory = record.series.get("rss_anon_swap_bytes")
    if memory is not None and len(memory):
        change = size("memory", float(memory.value[-1] - memory.value[0]), signed=True)
        lines.append(f"Private memory moved by {change} from the first sample to the last.")
    given = record.last_event(Reclaim)
    if given is not None:
        rest, trimmed = given.at_rest_bytes, given.after_trim_bytes
        flushed, collected = given.after_flush_bytes, given.after_collect_bytes
        lines.append(
            f"At the end malloc_trim released {size('trim', rest - trimmed)}, flushing the cache "
            f"{size('flush', trimmed - flushed)}, a full collection "
            f"{size('collect', flushed - collected)}."
        )
    again = again_command(record.manifest, "--diagnose", "always")
    again = again or "hybridbench soak ... --diagnose always"
    lines += ["To see holders and reference cycles, run again with a diagnosis:", f"  {again}"]
    return lines


def _split_table(found: Diagnosis) -> Table:
    if found.explained is None:
        # Splitting negligible growth would only mislead.
        return NO_TABLE
    rows = tuple(
        (
            part.kind.value,
            size(f"{part.kind}.bytes", part.size_bytes, signed=True, part_of="growth.idle"),
            Quantity(f"{part.kind}.share", part.share, SHARE, part_of="growth"),
            part_detail(found, part.kind),
        )
        for part in found.parts
    )
    note = phrase(
        "Growth of idle private memory from ",
        moment("diagnosis from", found.from_s),
        " to ",
        moment("diagnosis to", found.to_s),
        ": ",
        size("growth.idle", found.growth_bytes, signed=True),
        "; explained ",
        Quantity("explained.share", found.explained, SHARE),
        ".",
    )
    return Table(
        "Where the growth is", ("part", "bytes", "share", "what"), rows, frozenset({1, 2}), note
    )


def _stages_table(stages: Iterable[StageRow]) -> Table:
    rows = tuple(
        (
            _STAGE_WORDS.get(row.name, row.name),
            size(f"private after {row.name}", row.private_bytes),
            size(f"released by {row.name}", row.gave_bytes) if row.name != "rest" else "",
            ""
            if row.gave_at_baseline_bytes is None
            else size(f"released at the baseline by {row.name}", row.gave_at_baseline_bytes),
        )
        for row in stages
    )
    columns = ("after", "private memory", "released", "at the baseline")
    return Table("Memory released by step", columns, rows, frozenset({1, 2, 3}))


def _holders_table(found: Diagnosis) -> Table:
    rows = tuple(
        (
            row.objects.type_name,
            _more(row, i),
            size(f"held {i}.bytes", row.objects.size_bytes),
            _held_how(row),
        )
        for i, row in enumerate(found.holdings)
        if found.explained is not None or row.objects.dragged
    )
    columns = ("class", "more", "bytes", "held by")
    return Table("Held objects that the baseline did not have", columns, rows, frozenset({1, 2}))


def _cycles(found: Diagnosis) -> tuple[Phrase, ...]:
    if found.garbage.objects < OBJECTS_MIN:
        return ()
    return tuple(
        phrase(Quantity(f"{cycle}.share", cycle.share, SHARE), f" of the sampled cycles: {cycle}")
        for cycle in found.garbage.cycles
    )


def _more(row: Holding, place: int) -> Text:
    """Return how many objects were added, or how many entries to an existing object."""
    if row.objects.count:
        return Quantity(f"held {place}.objects", row.objects.count)
    entries = Quantity(f"held {place}.entries", row.objects.entries)
    return phrase(entries, " entry" if row.objects.entries == 1 else " entries")


def _calls_table(found: Allocations | None) -> Table:
    sites = () if found is None else found.sites
    rows = tuple(
        (
            size(f"allocated {i}.bytes", site.size_bytes),
            Quantity(f"allocated {i}.blocks", site.count),
            " < ".join(site.stack),
        )
        for i, site in enumerate(sites)
    )
    note: Text = ""
    if found is not None:
        note = phrase(
            length("allocations traced", found.seconds),
            " more of traffic, ",
            Quantity("requests traced", found.requests),
            f" requests, then a flush; for every stack: memray flamegraph --leaks {ALLOCATIONS}",
        )
    columns = ("bytes", "blocks", "allocated in, called by")
    return Table("Allocated and never freed", columns, rows, frozenset({0, 1}), note)


def _held_how(row: Holding) -> str:
    chain = " -> ".join(row.objects.chain) or row.objects.holder
    if row.objects.dragged:
        return f"only neighbours' pointers, mostly {row.objects.holder}: {chain}"
    return f"{chain} (in the cache)" if row.in_cache else chain
