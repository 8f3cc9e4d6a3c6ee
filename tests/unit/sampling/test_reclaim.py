"""What a process gives back, step by step, and in which order."""

from __future__ import annotations

import gc

from hybridbench.sampling.reclaim import reclaim


class Knot:
    """Garbage that only the collector frees."""

    freed = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        Knot.freed += 1


def test_slack_goes_first_then_the_cache_then_garbage_also_what_was_frozen() -> None:
    seen: list[tuple[str, int]] = []

    def read() -> int:
        seen.append(("read", Knot.freed))
        return 100 - len(seen)

    Knot()
    gc.freeze()
    before = Knot.freed
    given = reclaim(read, lambda: seen.append(("flush", Knot.freed)))

    assert [what for what, _ in seen] == ["read", "read", "flush", "read", "read"]
    assert [freed - before for _, freed in seen] == [0, 0, 0, 0, 1]
    assert (given.at_rest_bytes, given.after_collect_bytes) == (99, 95)
    assert gc.get_freeze_count() == 0
