"""Garbage of known number and size, for tests of the code that counts it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


class Node:
    """Half of a cycle, with a payload."""

    def __init__(self, payload: object = None) -> None:
        self.payload = payload
        self.other: Node | None = None


def drop_pair(payload: object = None) -> None:
    """Leave behind two nodes that only refer to each other."""
    left, right = Node(payload), Node()
    left.other, right.other = right, left


@contextmanager
def undisturbed() -> Iterator[None]:
    """Disable automatic collection in the context, and collect before and after."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
