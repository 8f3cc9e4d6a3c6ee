"""Whose row it is, where rows of several processes, GPUs, containers or series share a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from hybridbench.series.cells import number_in
from hybridbench.series.times import Times
from hybridbench.series.units import PROCESS_ID, bare_name

# What a row is about, where rows of several processes or GPUs take turns.
_GPU = re.compile(r"index|(gpu_)?uuid|(gpu_|pci\.)bus_id|(gpu_)?serial", re.I)
# Text that tells whose row it is, in tables of containers, pods or several series.
_OWNER = re.compile(
    r"names?|series|(pod|container|process)([ _]?(id|name))?|instance|host(name)?|namespace|group|"
    r"device|service|metric|_field",
    re.I,
)
_NUMBERED_OWNER = re.compile(r"([tdpe]p_?)?rank|(worker|gpu|device)_?id|worker", re.I)
_ROWS_OF_A_MOMENT = 1.5
_VALUE_COMES = 4  # times at least, or it is a level
_OF_NVIDIA_SMI = re.compile(
    r"(memory|utilization|temperature|clocks|power|fan|pcie|ecc)\.[a-z._]+|used_(gpu_)?memory", re.I
)


def keys_of(
    names: Sequence[str], columns: Sequence[Sequence[str]], times: Times | None
) -> Sequence[int]:
    """The columns that tell whose row it is, where rows of several take turns."""
    # Elsewhere an index counts the rows.
    of_gpus = any(_OF_NVIDIA_SMI.fullmatch(bare_name(name)) for name in names)
    turns = [index for index, cells in enumerate(columns) if _takes_turns(cells)]
    processes = [index for index in turns if PROCESS_ID.fullmatch(names[index])]
    gpus = [index for index in turns if of_gpus and _GPU.fullmatch(names[index])]
    if gpus or processes:
        # One name of a GPU is enough, and a process is one of its parent's.
        return [*gpus[:1], *processes[:1]]
    owners: list[int] = []
    # A name says more than an id.
    for index in sorted(range(len(names)), key=lambda i: not names[i].lower().endswith("name")):
        new = index in turns or (times is not None and _begins_anew(columns[index], times))
        # Of the name and the id of a container either says it.
        if new and _may_own(names[index], columns[index]) and _splits(columns, owners, index):
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


def _takes_turns(cells: Sequence[str]) -> bool:
    """Whether a value comes back after another; a process that follows another does not."""
    different = set(cells)
    if len(different) == 1 or not all(different):
        return False
    return 1 + sum(a != b for a, b in pairwise(cells)) > len(different)


def _begins_anew(cells: Sequence[str], times: Times) -> bool:
    """Whether the times begin again with each new value, and with nothing else."""
    new = np.array([a != b for a, b in pairwise(cells)], dtype=bool)
    return bool(new.any() and np.array_equal(new, np.diff(times.t_s) < 0))


def _tells_apart(columns: Sequence[Sequence[str]], times: Times) -> Sequence[int]:
    """The column of few values that tells the rows of each moment apart, whatever its name."""
    moments = times.t_s.tolist()
    if len(moments) < _ROWS_OF_A_MOMENT * len(set(moments)):
        return []
    found = [
        (len(set(cells)), index)
        for index, cells in enumerate(columns)
        if len(set(cells)) * _VALUE_COMES <= len(cells)
        and len(set(zip(moments, cells, strict=True))) == len(cells)
    ]
    return [min(found)[1]] if found else []


def _may_own(name: str, cells: Sequence[str]) -> bool:
    if _NUMBERED_OWNER.fullmatch(name):
        return True
    return bool(_OWNER.fullmatch(name)) and all(number_in(cell) is None for cell in cells)


def _splits(columns: Sequence[Sequence[str]], owners: Sequence[int], index: int) -> bool:
    """Whether ``index`` tells rows apart that ``owners`` do not."""
    before = set(zip(*(columns[i] for i in owners), strict=True))
    after = set(zip(*(columns[i] for i in (*owners, index)), strict=True))
    return len(after) > max(len(before), 1)
