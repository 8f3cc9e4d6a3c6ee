"""sglang#26796: each time the engine is idle it walks the whole prefix tree to check it.

Summing the pools is cheap; the cost of checking the tree grows with its nodes.  Between two
requests an engine is idle for a moment, so the next request waits for the walk: a full tree makes a
nearly idle server slow.  Memory, hits and tokens do not change.
"""

from __future__ import annotations

import time

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.engine import Engine
from hybridbench.engine.scheduler.audit import InvariantViolation
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.schedule_batch import ScheduleBatch

TRUTH = Truth()
_healthy_check = Engine._check
_healthy_check_sums = Engine._check_sums


def _check(
    self: Engine, batch: ScheduleBatch | None, outcome: StepOutcome, step_began_s: float
) -> None:
    """Check as usual, and count the steps over which a report averages."""
    # While the tree is still growing, walks are shorter and reports do not judge them.
    TRUTH.add("steps", int(self.counters.evict_calls > 0))
    _healthy_check(self, batch, outcome, step_began_s)


def _check_sums(self: Engine, idle: bool, of_step: list[InvariantViolation]) -> None:
    """Check the sums and, when idle, the tree as well, as a checkpoint does."""
    _healthy_check_sums(self, idle, of_step)
    if not idle:
        return
    began_ns = time.thread_time_ns()
    self._invariants.check_tree()
    TRUTH.add("walks")
    full = self.counters.evict_calls > 0
    TRUTH.add("walk_ns", int(full) * (time.thread_time_ns() - began_ns))


DEFECT = Defect(
    slug="idle-sanity-walk",
    source="sglang#26796",
    symptom="The idle engine walks its whole prefix tree while the next request waits, in "
    "proportion to the nodes of the tree. Memory is flat.",
    profile="zero-hit-short",
    signature=Signature(
        verdicts=("DEGRADED",),
        kinds=("below-threshold",),
        subject="check_ms",
        event="step that leaves the engine idle",
        rate="time in proportion to the nodes: 1 us or more for each",
        harm="walk_ns",
        per="steps",
        counted="value",
        scale=1e-6,
        duration_s=240.0,
        quick_s=0.0,
    ),
    patches=(
        Patch(Engine, "_check", _check, fingerprint="46288b24426b"),
        Patch(Engine, "_check_sums", _check_sums, fingerprint="972b67178d8f"),
    ),
    harmed="Hybrid models with a large tree: the scheduler used 99% of a core with almost no "
    "traffic, requests never returned, and servers hung.",
    cure="The walk is off by default and meant for tests only.",
    # Every walk also slows filling the pool, which could take minutes with the profile's own size.
    overrides=(("pools.kv_tokens", "120000"),),
    truth=TRUTH,
)
