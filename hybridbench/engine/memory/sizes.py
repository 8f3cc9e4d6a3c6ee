"""Validate requested sizes.

A request for more slots than exist is valid, and gets none.  A negative size is invalid, since it
would corrupt the free list.
"""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

import numpy as np

from hybridbench.engine.memory.indices import IntArray


class AllocationSizeError(ValueError):
    """The number of slots requested is invalid.  Nothing was taken."""


def checked_size(need_size: object, what: str) -> int:
    """``need_size`` as an int, checked to be a valid number of ``what``.

    Raises:
        AllocationSizeError: negative, or not an integer.
    """
    if type(need_size) is not int:
        # Accepts numpy and torch integers; a bool is a mistake.
        if isinstance(need_size, bool) or not isinstance(need_size, SupportsIndex):
            raise AllocationSizeError(f"{need_size!r} is not a number of {what}")
        need_size = index(need_size)
    if need_size < 0:
        raise AllocationSizeError(f"cannot allocate {need_size} {what}: the number is negative")
    return need_size


def whole_pages(need_size: object, page_size: int) -> int:
    """Number of pages of ``page_size`` in ``need_size`` KV tokens.

    Raises:
        AllocationSizeError: negative, not an integer, or not a multiple of the page size.
    """
    tokens = checked_size(need_size, "KV tokens")
    if tokens % page_size != 0:
        raise AllocationSizeError(f"{tokens} tokens are not whole pages of {page_size}")
    return tokens // page_size


def check_extend(starts: IntArray, ends: IntArray) -> None:
    """Check that requests can grow from ``starts`` to ``ends`` tokens.

    Raises:
        AllocationSizeError: a request would become shorter, or a length is negative.
    """
    if len(starts) and (starts.min() < 0 or (ends < starts).any()):
        raise AllocationSizeError(
            f"cannot extend from {starts.tolist()} to {ends.tolist()} tokens: a length would "
            "shrink or is negative"
        )


def check_decode(ends: IntArray) -> None:
    """Check lengths ``ends``, which include one new token each.

    Raises:
        AllocationSizeError: a length is less than 1.
    """
    # This runs once per step; for arrays this small, ``min`` takes twice the time.
    if np.count_nonzero(ends < 1):
        raise AllocationSizeError(
            f"lengths that include a new token must be at least 1, not {ends.tolist()}"
        )
