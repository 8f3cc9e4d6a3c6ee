"""What happened to a request, and which requests computed the KV and states it builds on.

Tree nodes and sessions record which requests computed what they hold: the most recent one, then
those that it built on, at most ``MOST_WRITERS``.  The record is for diagnosis only; no decision
depends on it.
"""

from __future__ import annotations

from typing import Final

MOST_WRITERS: Final = 8


class Passed:
    """Events in the life of a request, one bit each.

    The bits are plain ints because adding one to an IntFlag takes microseconds.

    Attributes:
        CHUNKED: a prefill step ended before its prompt did.
        GUESSED: a draft token of its answer was accepted.
        RETRACTED: it was returned to the queue.
        REFUSED: it was refused admission after a match.
        BESIDE_OTHERS: other requests were running when its prefill was done.
        IN_SESSION: it is a turn of a session.
        LOADED_BACK: KV or states of its prefix were loaded from the host.
        ENDED_ADMISSION: it used up the room or the budget of its admission step.
        ENDED_AFTER_HIT: it did the same after reusing a prefix.
    """

    CHUNKED: Final = 1 << 0
    GUESSED: Final = 1 << 1
    RETRACTED: Final = 1 << 2
    REFUSED: Final = 1 << 3
    BESIDE_OTHERS: Final = 1 << 4
    IN_SESSION: Final = 1 << 5
    LOADED_BACK: Final = 1 << 6
    ENDED_ADMISSION: Final = 1 << 7
    ENDED_AFTER_HIT: Final = 1 << 8


# A request's ``arrival``, and its ``Passed`` bits at the time when it handed over its results.
Writer = tuple[int, int]
Writers = tuple[Writer, ...]  # nearest first


def loaded_back(writers: Writers) -> Writers:
    """Return the ``writers`` of KV or a state that came from the host; its readers inherit that."""
    return tuple((number, passed | Passed.LOADED_BACK) for number, passed in writers)


def joined(*chains: Writers) -> Writers:
    """Concatenate ``chains`` without repeats, and keep the first ``MOST_WRITERS`` requests."""
    known: dict[int, int] = {}
    for chain in chains:
        for number, passed in chain:
            known.setdefault(number, passed)
    return tuple(known.items())[:MOST_WRITERS]
