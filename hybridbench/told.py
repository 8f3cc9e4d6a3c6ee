"""Words for whoever looks on: a closed terminal or a dead reader must not end what is told of."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO


def say(stream: TextIO, text: str) -> None:
    """Write ``text`` to ``stream`` at once, or nowhere if nobody reads that any more."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        give_up(stream)


def drop_the_dead(*streams: TextIO) -> None:
    """Have nothing more go to those of ``streams`` whose terminal has hung up."""
    for stream in streams:
        try:
            os.write(stream.fileno(), b"")
        except OSError:
            give_up(stream)
        except ValueError:
            # Replaced by one without a descriptor, as tests do.
            continue


def give_up(stream: TextIO) -> None:
    """What is written to ``stream`` from now on, and what its buffer holds, goes nowhere.

    Otherwise the interpreter would fail to flush it at the very end, and exit with a code of its
    own in place of ours.
    """
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
