"""What a reader must know beside the findings, in words: one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from hybridbench.analysis.findings.words import times
from hybridbench.analysis.reading import mappings, number, text, texts
from hybridbench.metrics import declared
from hybridbench.records.codes import NoteCode
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Note
from hybridbench.units import format_bytes, format_duration, format_percent

_CUT_BY: Final[Mapping[str, str]] = {
    "disk_full": "the disk was full",
    "workload_failed": "the workload failed",
}


def note_text(note: Note) -> str:
    """The sentence of ``note``; of a resumed run with its segment."""
    said = _SENTENCES[note.code](note.data)
    return said if note.segment is None else f"segment {note.segment}: {said}"


def not_seen_text(metric: str) -> str:
    """A gated metric without a sample, and what it would have shown."""
    return f"{metric}: {declared(metric).meaning}"


def _defects_as_of(data: Mapping[str, JsonValue]) -> str:
    releases = " and ".join(texts(data, "releases"))
    return f"this is the bundled engine with defects that {releases} had, not that release"


def _stopped_early(data: Mapping[str, JsonValue]) -> str:
    return f"stopped early, after {_duration(data, 'at_s')}: {text(data, 'message')}"


def _workload_failed(data: Mapping[str, JsonValue]) -> str:
    return f"no request was sent after {_duration(data, 'at_s')}: {text(data, 'message')}"


def _interrupted(data: Mapping[str, JsonValue]) -> str:
    return f"interrupted after {_duration(data, 'at_s')}; partial results"


def _not_covered(data: Mapping[str, JsonValue]) -> str:
    cause = _CUT_BY.get(text(data, "cut_by"), "the worker died")
    return f"{cause} before the required events were seen: {', '.join(_missing(data))}"


def _missing(data: Mapping[str, JsonValue]) -> Iterable[str]:
    for row in mappings(data, "missing"):
        seen, required = number(row, "seen"), number(row, "required")
        yield f"{text(row, 'counter')} {seen:,.0f} of {required:,.0f}"


def _extended(data: Mapping[str, JsonValue]) -> str:
    by = f" by {_duration(data, 'by_s')}" if "by_s" in data else ""
    return (
        f"extended{by} (at most {_duration(data, 'limit_s')}) beyond the planned "
        f"{_duration(data, 'planned_s')}, as the verdict was open: {text(data, 'message')}"
    )


def _no_steady_event(data: Mapping[str, JsonValue]) -> str:
    return (
        "no steady event was seen: the judged window may include warm-up, and growth over "
        f"less than {_duration(data, 'leak_from_s')} is not called a leak"
    )


def _no_checkpoint(_: Mapping[str, JsonValue]) -> str:
    return "no idle checkpoint was taken: missing slots are judged from samples alone"


def _busy_checkpoints(data: Mapping[str, JsonValue]) -> str:
    count = times(number(data, "checkpoints"), "checkpoint")
    return f"{count} ignored: requests were in flight"


def _overhead(data: Mapping[str, JsonValue]) -> str:
    share, scans = format_percent(number(data, "share"), 2), number(data, "heap_scans")
    return (
        f"measurement overhead: {share} of engine-loop time in the whole run ({scans:,.0f} heap "
        "scans)"
    )


def _cpu_wait(data: Mapping[str, JsonValue]) -> str:
    waited_s, watched_s = number(data, "waited_s"), number(data, "watched_s")
    share = format_percent(waited_s / max(watched_s, 1e-9), 1)
    return f"the worker waited for a CPU for {share} of {_duration(data, 'watched_s')}"


def _machine_slower(data: Mapping[str, JsonValue]) -> str:
    labels = ", ".join(declared(name).meaning for name in texts(data, "metrics"))
    return (
        f"the machine slowed down in the judged window: {labels} rose, but not more than "
        "the other times did"
    )


def _segment_invalid(data: Mapping[str, JsonValue]) -> str:
    return f"not conclusive by itself: {text(data, 'title')}"


def _levelled_off(data: Mapping[str, JsonValue]) -> str:
    rise = format_bytes(number(data, "rise_bytes"))
    return (
        f"private memory rose by {rise} in the first {_duration(data, 'in_s')}, before the judged "
        "window, and then levelled off"
    )


def _reclaimed(data: Mapping[str, JsonValue]) -> str:
    """What the worker released at the end: cache and slack are no leak, garbage is its own."""
    # What was allocated in between, for the answer itself, is no release.
    rest, trim, flush, collect = (
        format_bytes(max(0.0, number(data, key)))
        for key in ("at_rest_bytes", "trimmed_bytes", "flushed_bytes", "collected_bytes")
    )
    return (
        f"of {rest} held while idle, malloc_trim released {trim}, flushing the cache {flush}, a "
        f"full collection {collect}"
    )


def _segments_judged(data: Mapping[str, JsonValue]) -> str:
    judged = [
        f"segment {number(row, 'segment'):.0f} from {_duration(row, 'start_s')} to "
        f"{_duration(row, 'end_s')}"
        for row in mappings(data, "windows")
    ]
    return f"judged: {', '.join(judged)}" if judged else "no segment was long enough to be judged"


def _duration(data: Mapping[str, JsonValue], key: str) -> str:
    return format_duration(number(data, key))


_SENTENCES: Final[Mapping[NoteCode, Callable[[Mapping[str, JsonValue]], str]]] = {
    NoteCode.DEFECTS_AS_OF: _defects_as_of,
    NoteCode.STOPPED_EARLY: _stopped_early,
    NoteCode.WORKLOAD_FAILED: _workload_failed,
    NoteCode.INTERRUPTED: _interrupted,
    NoteCode.NOT_COVERED: _not_covered,
    NoteCode.EXTENDED: _extended,
    NoteCode.NO_STEADY_EVENT: _no_steady_event,
    NoteCode.NO_CHECKPOINT: _no_checkpoint,
    NoteCode.BUSY_CHECKPOINTS: _busy_checkpoints,
    NoteCode.LEVELLED_OFF: _levelled_off,
    NoteCode.RECLAIMED: _reclaimed,
    NoteCode.OVERHEAD: _overhead,
    NoteCode.CPU_WAIT: _cpu_wait,
    NoteCode.MACHINE_SLOWER: _machine_slower,
    NoteCode.SEGMENTS_JUDGED: _segments_judged,
    NoteCode.SEGMENT_INVALID: _segment_invalid,
}
