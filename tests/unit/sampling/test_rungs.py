"""The rungs in their order, each with the memory after it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

from hybridbench.sampling.rungs import Memory, RungWork, at_rest, destructive_rungs, trim


class Knot:
    """A cycle of its own."""

    def __init__(self) -> None:
        self.self = self


def work(seen: list[str], device: Callable[[], object] | None = None) -> RungWork:
    def read() -> Memory:
        seen.append("read")
        return Memory(1000 - len(seen))

    return RungWork(read, lambda: seen.append("flush"), device)


def test_the_rungs_are_climbed_from_what_changes_nothing_to_what_destroys_most() -> None:
    seen: list[str] = []
    ladder = work(seen, lambda: seen.append("device"))

    rungs = [at_rest(ladder), trim(ladder), *destructive_rungs(ladder)]

    assert [rung.name for rung in rungs] == ["rest", "trim", "collect", "flush", "device"]
    assert seen == ["read", "read", "read", "flush", "read", "device", "read"]
    assert [rung.memory.private_bytes for rung in rungs] == [999, 998, 997, 995, 993]


def test_without_a_device_there_is_no_rung_for_it() -> None:
    assert [rung.name for rung in destructive_rungs(work([]))] == ["collect", "flush"]


def test_garbage_goes_at_the_collector_s_rung_before_the_cache_is_flushed() -> None:
    gc.collect()
    gc.disable()
    try:
        watched = weakref.ref(Knot())
        alive: list[bool] = []

        def flush() -> None:
            alive.append(watched() is not None)

        ladder = RungWork(lambda: Memory(int(watched() is not None)), flush)
        rungs = [at_rest(ladder), trim(ladder), *destructive_rungs(ladder)]
    finally:
        gc.enable()

    assert [rung.memory.private_bytes for rung in rungs] == [1, 1, 0, 0]
    assert alive == [False]


def test_frozen_garbage_goes_as_well() -> None:
    gc.collect()
    gc.disable()
    try:
        watched = weakref.ref(Knot())
        gc.freeze()
        list(destructive_rungs(work([])))
        assert watched() is None
    finally:
        gc.unfreeze()
        gc.enable()
