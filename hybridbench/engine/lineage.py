"""What a request has been through, and whose KV and states it goes on from.

A tree node and a session keep who computed what they hold: the request itself, then those that it
had gone on from.  Nothing here decides anything, and at most ``MOST_WRITERS`` numbers are kept.
"""

from __future__ import annotations

from typing import Final

MOST_WRITERS: Final = 8


class Passed:
    """What happened to a request on its way, a bit each; an IntFlag takes microseconds to add one.

    Attributes:
        CHUNKED: a prefill step did not end its prompt.
        GUESSED: a drafted token of its answer was right.
        RETRACTED: it was sent back to the queue.
        REFUSED: it was refused admission after a match.
        BESIDE_OTHERS: requests ran when its prefill was done.
        IN_SESSION: it is a turn of a session.
        LOADED_BACK: KV or states of its prefix came back from the host.
        ENDED_ADMISSION: with it the room or the budget of its admission step was used up.
        ENDED_AFTER_HIT: the same, and it had reused a prefix.
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


# A request by its ``arrival``, and what it had been through when it handed over what it computed.
Writer = tuple[int, int]
Writers = tuple[Writer, ...]  # the nearest first


def joined(*chains: Writers) -> Writers:
    """The requests of all ``chains``, each once and those of the first chain first; as many as are
    kept.
    """
    known: dict[int, int] = {}
    for chain in chains:
        for number, passed in chain:
            known.setdefault(number, passed)
    return tuple(known.items())[:MOST_WRITERS]
