"""Read one name and number per line, repeated per sample: /proc, /metrics, cgroups, systemctl.

``anon 4096``, ``VmRSS:  123 kB``, ``MemoryCurrent=524288000`` and a Prometheus page all have this
shape; a name that repeats starts the next sample.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hybridbench.foundation.labels import unlabelled
from hybridbench.series.grid import Grid
from hybridbench.series.source import Line, Source
from hybridbench.series.times import is_moment

# A name of several words, as in the status of php-fpm.
_PHRASE = r"[A-Za-z]\w*(?: \(?\w+\)?)+(?=\s*:)"
_PAIR = re.compile(
    # grep on several files: /proc/42/status:VmRSS: 123 kB
    r"(?:(?P<file>/[\w./-]+):)?"
    rf"(?P<name>[A-Za-z_:][\w:.()-]*(?:\{{.*\}})?|{_PHRASE})(?:\s*:\s*|\s+|\s*=\s*)"
    r"(?P<number>[+-]?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[Ii]nf(?:inity)?|N[aA]N))"
    r"(?P<unit>\s*(?:kB|[KMG]i?B|(?<=\d)[KMG]|bytes|%))?"
    # systemctl status: Memory: 512.3M (peak: 600.1M swap: 0B)
    r"(?:\s+\((?:min|low|high|max|limit|available|peak|swap|zswap): .*\))?"
    # The time of a Prometheus sample, in milliseconds; OpenMetrics writes seconds.
    r"(?:\s+(?P<at>\d{13}|\d{10}(?:\.\d+)?))?"
)
# A key without a number: a state, the name of a unit, hexadecimal ids and masks.
# Redis INFO has no space after its colon; SQLite has one on both sides of the equals sign.
_KEY = re.compile(
    rf"(?P<name>[A-Za-z_][\w.]*|{_PHRASE})(?:\s*:(?:\s|$)|\s*=|(?<=[a-z]):)\s*(?P<text>\S.*)?"
)
_HEAD_OF_SMAPS = re.compile(r"[0-9a-f]+-[0-9a-f]+ .*\[rollup\]$")
# For a histogram, read only its sum and count; the creation time of a series is not a level.
_NO_SERIES = re.compile(r"_(bucket|created)(\{|$)")
_COUNTER = re.compile(r"# TYPE (\S+) counter$")
# A word alone, such as the host above the status of Apache.
_TITLE = re.compile(r"[A-Za-z][\w.-]*")
_LOOKED_AT = 12
# A logfmt line, perhaps after a time and a word: ts=2026-11-20T10:00:00Z level=info rss=123MB, or
# Total: reserved=5684MB, committed=4216MB.
_FIELD = re.compile(r"([A-Za-z_][\w.-]*)=(\"[^\"]*\"|(?!\")\S*?)(?<![,;])[,;]*(?=\s|$)")
# Go's example of MemStats prints Alloc = 12 MiB.
_SPACED = re.compile(r"(?<=\w) = (?=\S)|(?<=\d) (?=[kKMG]i?B\b)")
# Words before the fields are a log level, or their owner: worker 2: rss=123 MB.
_FIELDS = re.compile(
    r"(?:(?P<at>[^=]*?[\d\])Z])\s+)?(?P<owner>(?:[A-Za-z]+:?\s+){0,3}|(?:[\w.#/-]+\s+){0,2}[\w.#/-]+:\s+)"
    rf"{_FIELD.pattern}(?:\s+{_FIELD.pattern})*"
)


def are_pairs(lines: Sequence[Line]) -> bool:
    """Return whether ``lines`` start with names and numbers rather than with a table."""
    first = [line.text.strip() for line in lines[:_LOOKED_AT]]
    if _HEAD_OF_SMAPS.match(first[0]) or first[0].startswith(("# HELP ", "# TYPE ")):
        return True
    numbers = [text for text in first if not (text.startswith("#") or _TITLE.fullmatch(text))]
    pairs = [text for text in numbers if _is_pair(text)]
    # ZooKeeper puts no colon behind the name of a text: zk_version 3.8.0, built on ...
    stems = tuple({f"{text.split('_')[0]}_" for text in pairs if "_" in text.split()[0]})
    all_keys = all(t in pairs or _KEY.fullmatch(t) or t.startswith(stems) for t in numbers)
    return all_keys and (bool(pairs) or _is_status(numbers))


def pairs(lines: Sequence[Line], source: Source) -> Grid:
    """Return a table of one column per name, one row per sample."""
    of_status = _is_status([line.text.strip() for line in lines[:_LOOKED_AT]])
    samples: list[tuple[Line, dict[str, str]]] = []
    dated: dict[str, dict[str, str]] = {}
    odd: list[int] = []
    counters = {match[1] for line in lines if (match := _COUNTER.match(line.text.strip()))}
    for line in lines:
        text = line.text.strip()
        found = _pair(text)
        if found is None or text.startswith("#"):
            skipped = of_status or text.startswith("#") or _HEAD_OF_SMAPS.match(text)
            odd += [] if skipped else [line.number]
            continue
        name, value, has_unit, at = found
        # Others of /proc/PID/status without a unit are ids, masks or context switches.
        is_other = of_status and not has_unit and name not in ("Pid", "Threads")
        if is_other or _NO_SERIES.search(name):
            continue
        if at and not line.at:
            # A dump lists one series after another, so group its values by time.
            if at not in dated:
                dated[at] = {"time": at}
                samples.append((line, dated[at]))
            dated[at][name] = value
            continue
        if not samples or name in samples[-1][1] or line.at != samples[-1][0].at:
            samples.append((line, {}))
        samples[-1][1][name] = value
    if odd:
        source.notes.append(f"{len(odd)} lines left out, not a name and a number, first {odd[0]}")
    grid = Grid.of_records(samples)
    counts = (name for name in grid.names if unlabelled(name) in counters)
    return replace(grid, counters=frozenset(counts))


def _pair(text: str) -> tuple[str, str, bool, str] | None:
    """Parse a line: heading, value as text, whether it has a unit, its time; None if no match."""
    match = _PAIR.fullmatch(text)
    if match is None:
        key = _KEY.fullmatch(text)
        return None if key is None else (key["name"], key["text"] or "", False, "")
    unit = (match["unit"] or "").strip()
    # The kernel writes kB for KiB.
    binary = {"kB": "KiB", "K": "KiB", "M": "MiB", "G": "GiB"}.get(unit, unit)
    heading = f" ({binary})" if unit else ""
    label = f'{{file="{match["file"]}"}}' if match["file"] else ""
    # Munin adds the field of a value.
    name = match["name"].rstrip(":").removesuffix(".value")
    if name == "Memory" and unit in ("K", "M", "G"):
        # As systemctl status writes memory.current, which contains the page cache.
        name = "MemoryCurrent"
    name = name + heading + label
    return name, match["number"], bool(unit), match["at"] or ""


def _is_pair(text: str) -> bool:
    """Return whether a line is a name and a number, but not a line of mprof, which adds a time."""
    match = _PAIR.fullmatch(text)
    return match is not None and ("." not in (match["at"] or "") or "{" in match["name"])


def _is_status(texts: Sequence[str]) -> bool:
    return {"Name", "Tgid"} <= {text.partition(":")[0] for text in texts}


def are_fields(lines: Sequence[Line]) -> bool:
    """Return whether each line has several ``name=value`` pairs, or one and a time."""
    first = [_fields(line.text) for line in lines[:_LOOKED_AT]]
    return all(row is not None and len(row) > 1 for row in first)


def fields(lines: Sequence[Line], source: Source) -> Grid:
    """Read logfmt: one row per line."""
    read = [(line, _fields(line.text)) for line in lines]
    source.leave_out(
        [line for line, row in read if row is None],
        lines,
        "not names and values",
        "not a line of names and values, such as `time=... rss=123MB`.",
    )
    return Grid.of_records([(line, row) for line, row in read if row])


def _fields(text: str) -> dict[str, str] | None:
    """Return the fields of a line, with a leading time as ``time``; None for any other line."""
    text = _SPACED.sub(lambda spaced: spaced[0].replace(" ", ""), text.strip())
    match = _FIELDS.fullmatch(text)
    if match is None or (match["at"] and not is_moment(match["at"].strip("[]"))):
        return None
    found = {name: value.strip('"') for name, value in _FIELD.findall(text)}
    owner = {"owner": match["owner"].strip(" :")} if ":" in match["owner"] else {}
    return {**({"time": match["at"].strip("[]")} if match["at"] else {}), **owner, **found}
