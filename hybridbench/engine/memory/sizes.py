"""How many slots can be asked for.  More than there are can, and are not to be had; fewer than
none cannot: a size below 0 would turn the free list's arithmetic round.
"""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

import numpy as np

from hybridbench.engine.memory.indices import IntArray


class AllocationSizeError(ValueError):
    """Slots were asked for in a number that cannot be.  Nothing was taken."""


def checked_size(need_size: object, what: str) -> int:
    """``need_size`` as an int, after the check that so many ``what`` can be asked for.

    Raises:
        AllocationSizeError: negative, or no integer.
    """
    if type(need_size) is not int:
        # Integers of numpy and torch are taken; a truth value is nobody's number of slots.
        if isinstance(need_size, bool) or not isinstance(need_size, SupportsIndex):
            raise AllocationSizeError(f"{need_size!r} is not a number of {what}")
        need_size = index(need_size)
    if need_size < 0:
        raise AllocationSizeError(f"cannot take {need_size} {what}: fewer than none")
    return need_size


def whole_pages(need_size: object, page_size: int) -> int:
    """How many pages of ``page_size`` make ``need_size`` KV tokens.

    Raises:
        AllocationSizeError: negative, no integer, or not a multiple of the page size.
    """
    tokens = checked_size(need_size, "KV tokens")
    if tokens % page_size != 0:
        raise AllocationSizeError(f"{tokens} tokens are not whole pages of {page_size}")
    return tokens // page_size


def check_extend(starts: IntArray, ends: IntArray) -> None:
    """Requests of ``starts`` tokens are to have ``ends`` of them.

    Raises:
        AllocationSizeError: one is to become shorter, or has fewer tokens than none.
    """
    if len(starts) and (starts.min() < 0 or (ends < starts).any()):
        raise AllocationSizeError(
            f"cannot extend from {starts.tolist()} to {ends.tolist()} tokens: fewer than none"
        )


def check_decode(ends: IntArray) -> None:
    """Requests are to have ``ends`` tokens, one of which is new.

    Raises:
        AllocationSizeError: one has fewer than that token.
    """
    # Once a step: on an array of this size ``min`` takes twice the time.
    if np.count_nonzero(ends < 1):
        raise AllocationSizeError(f"one token more cannot make {ends.tolist()}")
