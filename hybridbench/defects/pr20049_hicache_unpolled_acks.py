"""sglang#20049, sglang#20560: transfers are acknowledged only when a prefill is formed.

A scheduler without waiting requests returned early, before it called ``check_hicache_events``.
While requests only decode, and while the engine is idle, every finished write keeps its node
locked, and every finished load keeps the device slots that it filled, until the next prefill.

At the time, an engine counted as idle, and could be flushed, with transfers outstanding.  An engine
that checks for transfers would never be idle with this defect, so the old behaviour is restored as
well; a flush first collects outstanding acknowledgements.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.engine.scheduler.schedule_batch import ChainsToCome, ScheduleBatch
from hybridbench.engine.scheduler.scheduler import Scheduler

TRUTH = Truth()
_LOCKED = "tokens_locked"
_healthy_next_prefill = Scheduler._next_prefill
_healthy_empty_tree = Pools.empty_tree


def _schedule(self: Scheduler, outcome: StepOutcome) -> ScheduleBatch | ChainsToCome | None:
    """Form the step's batch without polling for acknowledgements."""
    if self.is_paused:
        return None
    if self._window is not None:
        self._window.release(self.admitted())
    batch = self._next_prefill(outcome)
    return batch if batch is not None else self._next_decode(outcome)


def _next_prefill(self: Scheduler, outcome: StepOutcome) -> ScheduleBatch | None:
    """Before #20560 the poll came after this return."""
    if self.chunked_req is None and not self._may_admit():
        return None
    if self._host_tier is not None:
        self._host_tier.check_hicache_events()
    return _healthy_next_prefill(self, outcome)


def _has_transfers(self: Scheduler) -> bool:
    """Report no transfers: only requests determined whether the engine was idle."""
    if not self.has_requests and self._host_tier is not None:
        TRUTH.add(_LOCKED, _tokens_locked(self._pools) - TRUTH.counts().get(_LOCKED, 0))
    return False


def _empty_tree(self: Pools) -> None:
    """Finish the tree's transfers before emptying it."""
    host_tier = self.host_tier
    if host_tier is not None:
        host_tier.cache_controller.wait()
        host_tier.check_hicache_events()
    _healthy_empty_tree(self)


def _tokens_locked(pools: Pools) -> int:
    """Count the tokens of the nodes that transfers have locked, and of all nodes above them."""
    tokens: dict[int, int] = {}
    assert pools.host_tier is not None
    for node, _ in pools.host_tier.transfer_locks():
        above = node
        while above.parent is not None:
            tokens[above.id] = len(above.value)
            above = above.parent
    return sum(tokens.values())


DEFECT = Defect(
    slug="hicache-unpolled-acks",
    source="sglang#20049",
    symptom="KV stays locked with no request in the engine: the scheduler acknowledges completed "
    "writes to the host only with the next prefill.",
    profile="host-tier",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("locks-at-idle",),
        subject="full",
        event="write to the host that no prefill follows",
        rate="the tokens from its node to the root, until the next prefill",
        harm=_LOCKED,
        counted="locks",
        # It would need an extra healthy run of its profile; radix-lock-skip covers the same kind.
        quick_s=0.0,
    ),
    patches=(
        Patch(Scheduler, "schedule", _schedule, fingerprint="633c869cf655"),
        Patch(Scheduler, "_next_prefill", _next_prefill, fingerprint="835542aab22b"),
        Patch(Scheduler, "has_transfers", property(_has_transfers), fingerprint="6c3a2036c725"),
        Patch(Pools, "empty_tree", _empty_tree, fingerprint="f9c1b30b52e5"),
    ),
    harmed="HiCache with write-through while requests only decode: no KV could be evicted, until "
    'the scheduler ended with "Out of memory even after retracting all other requests".',
    cure="Completed transfers are acknowledged in every step, with or without a prefill.",
    truth=TRUTH,
)
