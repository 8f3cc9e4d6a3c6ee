"""Whose row it is, where rows of several processes, GPUs, containers or series share a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from hybridbench.analysis.record import FloatArray
from hybridbench.series.cells import is_nothing, number_in
from hybridbench.series.times import Times, looks_like_time
from hybridbench.series.units import PROCESS_ID, bare_name

# Of several names of a GPU one is enough.
_GPU = re.compile(r"index|gpu|(gpu_)?uuid|(gpu_|pci\.)bus_id|(gpu_)?serial", re.I)
_NUMBERED_OWNER = re.compile(r"([tdpe]p_?)?rank|(worker|gpu|device)_?id|worker|gpu", re.I)
# These say how a row's process is, and not which one it is.
_STATE = re.compile(r"s|stat|state|status|pstate|phase|.*reasons.*|start(ed)?|tty|time\+?", re.I)
_QUANTITY = re.compile(r"[+-]?\d+([.,]\d+)? ?[A-Za-z/%]+")
_ROWS_OF_A_MOMENT = 1.5
_VALUE_COMES = 4  # times at least, or it is a level
_SAME_SAMPLES = 0.9
_TURNS_MAX, _TURNS_LEAST = 8, 10  # levels in turn, and how often each must come
_APART = 5.0  # times what a level changes from one turn to the next
_APART_SHARE, _APART_MOSTLY = 0.02, 0.8  # of the largest level; of the turns
_OF_NVIDIA_SMI = re.compile(
    r"(memory|utilization|temperature|clocks|power|fan|pcie|ecc)\.[a-z._]+|used_(gpu_)?memory", re.I
)


def keys_of(
    names: Sequence[str], columns: Sequence[Sequence[str]], times: Times | None, at: int | None
) -> Sequence[int]:
    """The columns that tell whose row it is, where rows of several take turns.

    Args:
        names, columns: of the whole table.
        times: of its rows, if it has any; ``at`` is the column that they are from.
    """
    # Elsewhere an index counts the rows.
    of_gpus = any(_OF_NVIDIA_SMI.fullmatch(bare_name(name)) for name in names)
    turns = [i for i, cells in enumerate(columns) if i != at and _takes_turns(cells)]
    processes = [index for index in turns if PROCESS_ID.fullmatch(names[index])]
    gpus = [index for index in turns if of_gpus and _GPU.fullmatch(names[index])]
    if gpus or processes:
        # One name of a GPU is enough, and a process is one of its parent's.
        return [*gpus[:1], *processes[:1]]
    # A name says more than an id.
    words = sorted(
        (i for i, cells in enumerate(columns) if i != at and _may_own(names[i], cells)),
        key=lambda index: not names[index].lower().endswith("name"),
    )
    whole = [index for index in words if index in turns]
    together = bool(whole) and _recurs(columns, whole)
    owners: list[int] = []
    for index in words:
        anew = times is not None and _begins_anew(columns[index], times)
        recurs = index in turns and (together or _recurs(columns, [index]))
        # Of the name and the id of a container either says it.
        if (anew or recurs) and _splits(columns, owners, index):
            owners.append(index)
    return owners or ([] if times is None else _tells_apart(columns, times))


def parts_of(
    names: Sequence[str], rows: Sequence[Sequence[str]], keys: Sequence[int]
) -> Mapping[str, Sequence[int]]:
    """The rows of each process or GPU by its labels; all rows by none if there are no ``keys``."""
    parts: dict[str, list[int]] = {}
    for row, cells in enumerate(rows):
        label = labels((names[index], cells[index].strip()) for index in keys)
        parts.setdefault(label, []).append(row)
    return parts


def labels(pairs: Iterable[tuple[str, str]]) -> str:
    """What follows the name of a series to tell it from others; empty without ``pairs``."""
    labels = ", ".join(f'{key}="{value}"' for key, value in pairs)
    return f"{{{labels}}}" if labels else ""


def levels_in_turn(value: FloatArray) -> int:
    """Between how many levels, one after the other in the same order, the numbers go; 0 for none.

    A level of one process stays near itself from one turn to the next, and far from the others;
    a sawtooth does not keep step with the samples for ten teeth.
    """
    for count in range(2, _TURNS_MAX + 1):
        whole = value[: value.size // count * count].reshape(-1, count)
        if whole.shape[0] < _TURNS_LEAST or not np.isfinite(whole).all():
            return 0
        within = np.abs(np.diff(whole, axis=0)).max(axis=1)
        between = np.abs(np.diff(np.sort(whole, axis=1), axis=1)).min(axis=1)[1:]
        apart = between > np.maximum(_APART * within, _APART_SHARE * np.abs(whole).max())
        order = np.argsort(whole, axis=1)[1:][apart]
        # One that grows may overtake another.
        crossed = int(np.any(np.diff(order, axis=0) != 0, axis=1).sum())
        if apart.mean() >= _APART_MOSTLY and crossed < count:
            return count
    return 0


def _takes_turns(cells: Sequence[str]) -> bool:
    """Whether a value comes back after another; a process that follows another does not."""
    different = set(cells)
    return all(different) and 1 + sum(a != b for a, b in pairwise(cells)) > len(different)


def _recurs(columns: Sequence[Sequence[str]], keys: Sequence[int]) -> bool:
    """Whether each sample has rows of much the same values of ``keys``, more than one of them.

    A sample ends before a value comes again.  A state that a single process changes to and fro
    makes samples of one row, now and then of two.
    """
    values = list(zip(*(columns[index] for index in keys), strict=True))
    samples: list[set[tuple[str, ...]]] = []
    for row, value in enumerate(values):
        if not row or value in samples[-1]:
            samples.append(set())
        samples[-1].add(value)
    # The first and the last may be cut short.
    inner = samples[1:-1] or samples
    beside = list(pairwise(inner)) or [(inner[0], inner[0])]
    alike = sum(2 * len(a & b) >= max(len(a), len(b)) and len(b) > 1 for a, b in beside)
    return alike >= _SAME_SAMPLES * len(beside)


def _begins_anew(cells: Sequence[str], times: Times) -> bool:
    """Whether the times begin again with each new value, and with nothing else."""
    new = np.array([a != b for a, b in pairwise(cells)], dtype=bool)
    return bool(new.any() and np.array_equal(new, np.diff(times.t_s) < 0))


def _tells_apart(columns: Sequence[Sequence[str]], times: Times) -> Sequence[int]:
    """The column of few values that tells the rows of each moment apart, whatever its name."""
    moments = times.t_s.tolist()
    if len(moments) < _ROWS_OF_A_MOMENT * len(set(moments)):
        return []
    # A level that few digits are written of has few values as well, but more than owners.
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
    """Whether a column names things: in words, or in numbers where its name says so."""
    if _NUMBERED_OWNER.fullmatch(name):
        return True
    words = (cell.strip() for cell in set(cells))
    return not _STATE.fullmatch(name) and not any(
        is_nothing(word) or number_in(word) or _QUANTITY.fullmatch(word) or looks_like_time(word)
        for word in words
    )


def _splits(columns: Sequence[Sequence[str]], owners: Sequence[int], index: int) -> bool:
    """Whether ``index`` tells rows apart that ``owners`` do not."""
    before = set(zip(*(columns[i] for i in owners), strict=True))
    after = set(zip(*(columns[i] for i in (*owners, index)), strict=True))
    return len(after) > max(len(before), 1)
