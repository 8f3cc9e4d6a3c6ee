"""Find which process, GPU, container or series each row of a shared table belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from hybridbench.analysis.record import FloatArray
from hybridbench.series.cells import is_nothing, number_in
from hybridbench.series.times import Times, looks_like_time, names_time
from hybridbench.series.units import PROCESS_ID, bare_name

# A table may name a GPU in several columns; one is enough.
_GPU = re.compile(r"index|gpu|(gpu_)?uuid|(gpu_|pci\.)bus_id|(gpu_)?serial", re.I)
_NUMBERED_OWNER = re.compile(r"([tdpe]p_?)?rank|(worker|gpu|device)_?id|worker|gpu|id", re.I)
# Columns that describe a process's state, not its identity.
_STATE = re.compile(
    r"s|stat|state|status|pstate|phase|.*reasons.*|start(ed)?|tty|(time|zeit)\+?", re.I
)
# A new value of these is a new process: after a rollout, a pod's memory starts again.
_SUCCESSOR = re.compile(
    r"(.*[_. ])?(pod|container|instance|replica|process|worker|task|job|run)([_. ]?(name|id))?",
    re.I,
)
_SAMPLES_OF_EACH = 20  # least rows for each value, on average
_QUANTITY = re.compile(r"[+-]?\d+([.,]\d+)? ?[A-Za-z/%]+")
_ROWS_OF_A_MOMENT = 1.5
_VALUE_COMES = 4  # least repetitions of a value; a column with fewer is a level
_SAME_SAMPLES = 0.9
_TURNS_MAX, _TURNS_LEAST = 8, 10  # most alternating levels; least repetitions of each
_APART = 5.0  # distance between levels, in multiples of the change between two turns
_APART_SHARE, _APART_MOSTLY = 0.02, 0.8  # share of the largest level; share of the turns
_OF_NVIDIA_SMI = re.compile(
    r"(memory|utilization|temperature|clocks|power|fan|pcie|ecc)\.[a-z._]+|used_(gpu_)?memory", re.I
)


def keys_of(
    names: Sequence[str], columns: Sequence[Sequence[str]], times: Times | None, at: int | None
) -> Sequence[int]:
    """Find the columns that tell which row belongs to which owner, where rows alternate.

    Args:
        names, columns: of the whole table.
        times: of its rows, if it has any; ``at`` is the column that they come from.
    """
    # In other tables, an "index" column counts rows.
    of_gpus = any(_OF_NVIDIA_SMI.fullmatch(bare_name(name)) for name in names)
    turns = [i for i, cells in enumerate(columns) if i != at and _takes_turns(cells)]
    processes = [index for index in turns if PROCESS_ID.fullmatch(names[index])]
    gpus = [index for index in turns if of_gpus and _GPU.fullmatch(names[index])]
    if gpus or processes:
        # One GPU name is enough, and a process id implies its parent.
        return [*gpus[:1], *processes[:1]]
    # A name is more informative than an id.
    words = sorted(
        (i for i, cells in enumerate(columns) if i != at and _may_own(names[i], cells)),
        key=lambda index: not names[index].lower().endswith("name"),
    )
    whole = [index for index in words if index in turns]
    together = bool(whole) and _recurs(columns, whole)
    owners: list[int] = []
    for index in words:
        anew = times is not None and _begins_anew(columns[index], times)
        if index in turns:
            owns = together or _recurs(columns, [index])
        else:
            owns = _succeed_each_other(names[index], columns[index])
        # A container's name and id are equivalent; one is enough.
        if (anew or owns) and splits(columns, owners, index):
            owners.append(index)
    apart = [] if owners or times is None else _tells_apart(columns, times)
    # The hour beside a day is no owner.
    return owners or [index for index in apart if not names_time(names[index])]


def parts_of(
    names: Sequence[str], rows: Sequence[Sequence[str]], keys: Sequence[int]
) -> Mapping[str, Sequence[int]]:
    """Group row numbers by owner label; without ``keys``, one group with an empty label."""
    parts: dict[str, list[int]] = {}
    for row, cells in enumerate(rows):
        label = labels((names[index], cells[index].strip()) for index in keys)
        parts.setdefault(label, []).append(row)
    return parts


def labels(pairs: Iterable[tuple[str, str]]) -> str:
    """Format labels to append to a series name; empty without ``pairs``."""
    labels = ", ".join(f'{key}="{value}"' for key, value in pairs)
    return f"{{{labels}}}" if labels else ""


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
            return 0  # None of them grows: whose they are does not matter.
        apart = between > np.maximum(_APART * within, _APART_SHARE * np.abs(whole).max())
        order = np.argsort(whole, axis=1)[1:][apart]
        # A growing level may overtake another.
        crossed = int(np.any(np.diff(order, axis=0) != 0, axis=1).sum())
        if apart.mean() >= _APART_MOSTLY and crossed < count:
            return count
    return 0


def splits(columns: Sequence[Sequence[str]], owners: Sequence[int], index: int) -> bool:
    """Return whether ``index`` separates rows that ``owners`` does not."""
    before = set(zip(*(columns[i] for i in owners), strict=True))
    after = set(zip(*(columns[i] for i in (*owners, index)), strict=True))
    return len(after) > max(len(before), 1)


def _takes_turns(cells: Sequence[str]) -> bool:
    """Return whether values alternate: one process that replaces another does not."""
    different = set(cells)
    return all(different) and 1 + sum(a != b for a, b in pairwise(cells)) > len(different)


def _recurs(columns: Sequence[Sequence[str]], keys: Sequence[int]) -> bool:
    """Return whether most samples have several rows with nearly the same values of ``keys``.

    A sample ends before a value repeats.  If a single process switches between states, its
    samples have one row each, occasionally two.
    """
    values = list(zip(*(columns[index] for index in keys), strict=True))
    samples: list[set[tuple[str, ...]]] = []
    for row, value in enumerate(values):
        if not row or value in samples[-1]:
            samples.append(set())
        samples[-1].add(value)
    # The first and last samples may be incomplete.
    inner = samples[1:-1] or samples
    beside = list(pairwise(inner)) or [(inner[0], inner[0])]
    alike = sum(2 * len(a & b) >= max(len(a), len(b)) and len(b) > 1 for a, b in beside)
    return alike >= _SAME_SAMPLES * len(beside)


def _begins_anew(cells: Sequence[str], times: Times) -> bool:
    """Return whether the times restart at each new value, and only there."""
    new = np.array([a != b for a, b in pairwise(cells)], dtype=bool)
    return bool(new.any() and np.array_equal(new, np.diff(times.t_s) < 0))


def _succeed_each_other(name: str, cells: Sequence[str]) -> bool:
    """Return whether values that take no turns name processes that replace each other."""
    different = set(cells)
    is_named = bool(_SUCCESSOR.fullmatch(name)) and all(different)
    return is_named and _SAMPLES_OF_EACH * len(different) <= len(cells)


def _tells_apart(columns: Sequence[Sequence[str]], times: Times) -> Sequence[int]:
    """Find the column with few values that separates the rows of each moment, by any name."""
    moments = times.t_s.tolist()
    if len(moments) < _ROWS_OF_A_MOMENT * len(set(moments)):
        return []
    # A level printed with few digits also has few values, but more than there are owners.
    most = 2 * -(-len(moments) // len(set(moments)))
    found = [
        (len(set(cells)), index)
        for index, cells in enumerate(columns)
        if len(set(cells)) <= most
        and len(set(cells)) * _VALUE_COMES <= len(cells)
        and len(set(zip(moments, cells, strict=True))) == len(cells)
    ]
    return [min(found)[1]] if found else []


def _may_own(name: str, cells: Sequence[str]) -> bool:
    """Return whether a column identifies things: by words, or by numbers if its name implies it."""
    if _NUMBERED_OWNER.fullmatch(name):
        return True
    words = (cell.strip() for cell in set(cells))
    return not _STATE.fullmatch(name) and not any(
        is_nothing(word) or number_in(word) or _QUANTITY.fullmatch(word) or looks_like_time(word)
        for word in words
    )
