"""Mutants: which statements they remove, how they are named, and that nothing else changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import hybridbench
from hybridbench.defects.catalog import find_defect
from hybridbench.defects.inject import injected
from hybridbench.defects.mutants import (
    COUNTER,
    KINDS,
    REACHED,
    Candidate,
    candidates,
    candidates_in,
)
from hybridbench.engine.memory.owners import FREE, REQ
from hybridbench.engine.memory.slots import MambaSlotAllocator
from hybridbench.foundation.errors import UsageError

SOURCE = '''
class Pool:
    def __init__(self):
        self.slots.clear()

    def give(self, slot):
        """Words."""
        self.free(slot)
        if slot in self.names:
            del self.names[slot]
            self.free(slot)
        self.held -= 1
        self.last = None
        self.owner[slot] = 0
        held = self.free(slot)
        owner = self.owner[slot] = 1
        del held
        self.events.seen += 1
        self.check()
'''


def of(file: str, holder: str, method: str, text: str) -> Candidate:
    """Return the only candidate with these properties."""
    wanted = (file, holder, method, text)
    [one] = [c for c in candidates() if (c.file, c.holder, c.method, c.text) == wanted]
    return one


def test_what_frees_clears_relinks_or_counts_is_a_candidate_and_nothing_else() -> None:
    found = [(c.kind, c.text, c.occurrence) for c in candidates_in("pool.py", SOURCE)]

    assert sorted(found) == [
        ("clears", "del self.names[slot]", 1),
        ("clears", "self.last = None", 1),
        ("counts", "self.held -= 1", 1),
        ("frees", "self.free(slot)", 1),
        ("frees", "self.free(slot)", 2),
        ("relinks", "self.owner[slot] = 0", 1),
    ]


def test_a_slug_outlives_lines_and_statements_that_come_before_its_own() -> None:
    longer = SOURCE.replace('"""Words."""', '"""Words."""\n\n        log = slot').replace(
        "class Pool", "WORD = 1\n\n\nclass Pool"
    )

    before, after = (list(candidates_in("pool.py", text)) for text in (SOURCE, longer))

    assert {c.slug for c in before} == {c.slug for c in after}


def test_every_candidate_has_a_slug_of_its_own_and_both_halves_have_every_kind() -> None:
    slugs = Counter(c.slug for c in candidates())
    kinds = {(c.half, c.kind) for c in candidates()}

    assert set(slugs.values()) == {1}
    assert kinds == {(half, kind) for half in "AB" for kind in KINDS}


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_every_candidate_can_be_taken_out_of_its_method(stride: int) -> None:
    for candidate in list(candidates())[::stride]:
        [patch] = find_defect(candidate.slug).patches

        assert patch.method == candidate.method
        assert patch.holder.__qualname__ == candidate.holder


def test_a_mutant_lacks_its_statement_and_the_method_is_healthy_afterwards() -> None:
    mutant = find_defect(
        of("memory/slots.py", "SlotAllocator", "free", "self.free_slots.extend(checked)").slug
    )

    with injected(mutant):
        lossy = MambaSlotAllocator(size=2)
        slots = lossy.alloc(1, REQ)
        assert slots is not None
        lossy.free(slots, REQ)
    healthy = MambaSlotAllocator(size=2)
    slots = healthy.alloc(1, REQ)
    assert slots is not None
    healthy.free(slots, REQ)

    assert lossy.available_size() == 1
    assert healthy.available_size() == healthy.held(FREE) == 2


def test_executions_are_counted_and_change_nothing() -> None:
    counting = find_defect(REACHED)
    free = of("memory/slots.py", "SlotAllocator", "free", "self.free_slots.extend(checked)")

    with injected(counting):
        allocator = MambaSlotAllocator(size=3)
        for _ in range(2):
            slots = allocator.alloc(1, REQ)
            assert slots is not None
            allocator.free(slots, REQ)

    assert allocator.available_size() == 3
    assert counting.truth.counts()[free.slug] == 2


def test_no_name_in_the_engine_hides_the_counter() -> None:
    engine = Path(hybridbench.__file__).parent / "engine"

    assert [path for path in engine.rglob("*.py") if COUNTER in path.read_text()] == []


def test_a_mutant_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no such mutant"):
        find_defect("mutant-0")
