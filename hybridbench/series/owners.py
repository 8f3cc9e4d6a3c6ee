"""Find which process, GPU, container or series each row of a shared table belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hybridbench.analysis.record import FloatArray
from hybridbench.series.cells import is_nothing, number_in
from hybridbench.series.times import Times, looks_like_time, names_time
from hybridbench.series.units import PROCESS_ID, bare_name

# A table may name a GPU in several columns; one is enough.
_GPU = re.compile(r"index|gpu|(gpu_)?uuid|(gpu_|pci\.)bus_id|(gpu_)?serial", re.I)
_NUMBERED_OWNER = re.compile(r"([tdpe]p_?)?rank|(worker|gpu|device|job)_?id|worker|gpu|id", re.I)
# Columns that describe a process's state, not its identity.
_STATE = re.compile(
    r"s|stat|state|status|age|pstate|phase|.*reasons.*|start(ed)?|tty|(time|zeit)\+?", re.I
)
# A new value in these columns is a new process: after a rollout, a pod's memory starts again.
_SUCCESSOR = re.compile(
    r"(.*[_. ])?(pod|container|instance|replica|process|worker|task|job|run)([_. ]?(name|id))?",
    re.I,
)
_SAMPLES_OF_EACH = 20  # least rows for each value, on average
# Also one that is not read, because a remark follows it: 1024 (max 4096).
_QUANTITY = re.compile(r"[+-]?\d+([.,]\d+)? ?([A-Za-z/%]+|[,;(].*)")
_ROWS_OF_A_MOMENT = 1.5
_VALUE_COMES = 4  # least repetitions of a value; a column with fewer is a level
_SAME_SAMPLES = 0.9
_TURNS_MAX, _TURNS_LEAST = 8, 10  # most alternating levels; least repetitions of each
_APART = 5.0  # distance between levels, in multiples of the change between two turns
_APART_SHARE, _APART_MOSTLY = 0.02, 0.8  # share of the largest level; share of the turns
_OF_NVIDIA_SMI = re.compile(
    r"(memory|utilization|temperature|clocks|power|fan|pcie|ecc)\.[a-z._]+|used_(gpu_)?memory", re.I
)


@dataclass(frozen=True, eq=False)
class TextColumn:
    """A column of a table as text: its name, and one cell per row."""

    name: str
    cells: Sequence[str]


def keys_of(
    columns: Sequence[TextColumn], times: Times | None, known: Sequence[str] = ()
) -> Sequence[TextColumn]:
    """Find the columns that identify the owner of each row, where rows alternate.

    Args:
        columns: all columns of the table except the times.
        times: the times of its rows, if any.
        known: names of columns that the reader has identified as owners.
    """
    keys: list[TextColumn] = []
    for column in _names_first(column for column in columns if column.name in known):
        keys += [column] if splits(keys, column) else []
    return keys + [column for column in _found_keys(columns, times) if column not in keys]


def parts_of(keys: Sequence[TextColumn], row_count: int) -> Mapping[str, Sequence[int]]:
    """Group row numbers by owner label; without ``keys``, one group with an empty label."""
    if not keys:
        return {"": range(row_count)} if row_count else {}
    known: dict[tuple[str, ...], list[int]] = {}
    parts: dict[str, list[int]] = {}
    for row, cells in enumerate(zip(*(key.cells for key in keys), strict=True)):
        if cells not in known:
            own = zip((key.name for key in keys), map(str.strip, cells), strict=True)
            known[cells] = parts.setdefault(labels(own), [])
        known[cells].append(row)
    return parts


def labels(pairs: Iterable[tuple[str, str]]) -> str:
    """Format labels to append to a series name; empty without ``pairs``."""
    labels = ", ".join(f'{key}="{value}"' for key, value in pairs)
    return f"{{{labels}}}" if labels else ""


def rounds_of(values: Sequence[object]) -> list[int]:
    """Return the rows at which a round begins: the first, and each whose value recurs in its."""
    begins, seen = list[int](), set[object]()
    for row, value in enumerate(values):
        if not row or value in seen:
            begins.append(row)
            seen = set()
        seen.add(value)
    return begins


def levels_in_turn(value: FloatArray) -> int:
    """Return how many levels the numbers cycle through in a fixed order; 0 if they do not.

    The level of one process stays close to itself from turn to turn, and far from the others.
    A sawtooth does not stay aligned with the samples for ten cycles.
    """
    for count in range(2, _TURNS_MAX + 1):
        whole = value[: value.size // count * count].reshape(-1, count)
        if whole.shape[0] < _TURNS_LEAST or not np.isfinite(whole).all():
            return 0
        within = np.abs(np.diff(whole, axis=0)).max(axis=1)
        between = np.abs(np.diff(np.sort(whole, axis=1), axis=1)).min(axis=1)[1:]
        if not within.any():
            return 0  # None of them grows, so it does not matter whose they are.
        apart = between > np.maximum(_APART * within, _APART_SHARE * np.abs(whole).max())
        order = np.argsort(whole, axis=1)[1:][apart]
        # A growing level may overtake another.
        crossed = int(np.any(np.diff(order, axis=0) != 0, axis=1).sum())
        if apart.mean() >= _APART_MOSTLY and crossed < count:
            return count
    return 0


def _found_keys(columns: Sequence[TextColumn], times: Times | None) -> Sequence[TextColumn]:
    # In other tables, an "index" column counts rows.
    of_gpus = any(_OF_NVIDIA_SMI.fullmatch(bare_name(column.name)) for column in columns)
    turns = [column for column in columns if takes_turns(column.cells)]
    processes = [column for column in turns if PROCESS_ID.fullmatch(column.name)]
    gpus = [column for column in turns if of_gpus and _GPU.fullmatch(column.name)]
    if gpus or processes:
        # One GPU name is enough, and a process id implies its parent.
        return [*gpus[:1], *processes[:1]]
    words = _names_first(filter(may_own, columns))
    whole = [column for column in words if column in turns]
    together = bool(whole) and _recur(whole)
    owners: list[TextColumn] = []
    for column in words:
        new = np.array([a != b for a, b in pairwise(column.cells)], dtype=bool)
        # The times start again at each new value, and only there.
        anew = times is not None and new.any() and np.array_equal(new, np.diff(times.t_s) < 0)
        if column in turns:
            owns = together or _recur([column])
        else:
            owns = _succeed_each_other(column)
        if (anew or owns) and splits(owners, column):
            owners.append(column)
    apart = [] if owners or times is None else _tells_apart(columns, times)
    # The time of day beside a date is not an owner.
    return owners or [column for column in apart if not names_time(column.name)]


def _names_first(columns: Iterable[TextColumn]) -> Sequence[TextColumn]:
    """Sort names before ids: they are more informative, and one that splits the rows is enough."""
    return sorted(columns, key=lambda column: not column.name.lower().endswith("name"))


def splits(owners: Sequence[TextColumn], column: TextColumn) -> bool:
    """Return whether ``column`` separates rows that ``owners`` do not."""
    before = set(zip(*(owner.cells for owner in owners), strict=True))
    after = set(zip(*(owner.cells for owner in (*owners, column)), strict=True))
    return len(after) > max(len(before), 1)


def takes_turns(cells: Sequence[str]) -> bool:
    """Return whether values return after others, unlike processes that replace each other."""
    different = set(cells)
    return all(different) and 1 + sum(a != b for a, b in pairwise(cells)) > len(different)


def _recur(keys: Sequence[TextColumn]) -> bool:
    """Return whether most samples have several rows with nearly the same values of ``keys``.

    A sample ends before a value repeats.  If a single process switches between states, its
    samples have one row each, occasionally two.
    """
    values = list(zip(*(key.cells for key in keys), strict=True))
    samples = [set(values[a:b]) for a, b in pairwise([*rounds_of(values), len(values)])]
    # The first and last samples may be incomplete.
    inner = samples[1:-1] or samples
    beside = list(pairwise(inner)) or [(inner[0], inner[0])]
    alike = sum(2 * len(a & b) >= max(len(a), len(b)) and len(b) > 1 for a, b in beside)
    return alike >= _SAME_SAMPLES * len(beside)


def _succeed_each_other(column: TextColumn) -> bool:
    """Return whether the values, which do not alternate, are processes that replace each other."""
    different = set(column.cells)
    is_named = bool(_SUCCESSOR.fullmatch(column.name)) and all(different)
    return is_named and _SAMPLES_OF_EACH * len(different) <= len(column.cells)


def _tells_apart(columns: Sequence[TextColumn], times: Times) -> Sequence[TextColumn]:
    """Find the column with few values that separates the rows of each moment, by any name."""
    moments = times.t_s.tolist()
    if len(moments) < _ROWS_OF_A_MOMENT * len(set(moments)):
        return []
    # A level printed with few digits also has few values, but more than there are owners.
    most = 2 * -(-len(moments) // len(set(moments)))
    most = min(most, len(moments) // _VALUE_COMES)
    few = [c for c in columns if len(set(c.cells)) <= most]
    found = [c for c in few if len(set(zip(moments, c.cells, strict=True))) == len(moments)]
    return sorted(found, key=lambda c: len(set(c.cells)))[:1]


def may_own(column: TextColumn) -> bool:
    """Return whether a column identifies things: by words, or by numbers if its name implies it."""
    if _NUMBERED_OWNER.fullmatch(column.name):
        return True
    words = (cell.strip() for cell in set(column.cells))
    return not _STATE.fullmatch(column.name) and not any(
        is_nothing(word) or number_in(word) or _QUANTITY.fullmatch(word) or looks_like_time(word)
        for word in words
    )
