"""Choose requests to retract when one of higher priority does not fit: as few as needed."""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.engine.cache.base import MatchPrefixParams
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.engine.scheduler.prefill import PrefillAdder
from hybridbench.engine.scheduler.waiting import WaitingRules
from hybridbench.foundation.engine_config import EngineConfig


class Preemption:
    """Chooses running requests to retract for one of higher priority; retracts none itself.

    SGLang adds up only what the victims would still have produced.  Here what they hold counts too,
    including prefixes that only they lock, so that no request is retracted in vain: the request
    that needs the room is admitted in the same step.
    """

    def __init__(self, config: EngineConfig, rules: WaitingRules, pools: Pools) -> None:
        self.enabled = config.enable_priority_scheduling and not config.disable_priority_preemption
        self._threshold = config.priority_scheduling_preemption_threshold
        self._rules = rules
        self._pools = pools

    def victims(self, req: Req, running: Sequence[Req], adder: PrefillAdder) -> list[Req]:
        """Running requests to retract so that ``req`` fits; empty if even all would not suffice.

        Only requests count whose priority is lower by more than the threshold: lowest first,
        the newest among equals.  Turns of sessions stay: what they hold would go to their
        session and make no room.  One victim is enough for a row.
        """
        candidates = self._candidates(req, running)
        if not candidates:
            return []
        forecast = _Forecast(self._pools, req, adder)
        if not adder.would_compute(req, forecast.prefix_len):
            return []
        for count, victim in enumerate(candidates, start=1):
            forecast.without(victim)
            if forecast.fits():
                return candidates[:count]
        return []

    def _candidates(self, req: Req, running: Sequence[Req]) -> list[Req]:
        if not self.enabled:
            return []
        rank = self._rules.rank
        lowest = rank(req) + self._threshold
        able = [other for other in running if rank(other) > lowest and other.session is None]
        return sorted(able, key=lambda other: (-rank(other), -other.arrival))


class _Forecast:
    """The room for one waiting request if others were retracted one by one.

    A victim frees what it holds and what it was expected to produce, and unlocks its prefix in
    the tree: each node without other locks becomes evictable, unless it is in the waiting
    request's own prefix, which that request will lock instead.
    """

    def __init__(self, pools: Pools, req: Req, adder: PrefillAdder) -> None:
        self._adder = adder
        self._page_size = pools.page_size
        self.prefix_len, self._own = _reusable(pools, req)
        self._states_missing = pools.state_slots_wanted(req) - adder.rem_mamba_slots()
        self._need = adder.kv_need(req, self.prefix_len)
        self._room = adder.rem_total_tokens()
        self._swa_missing = adder.swa_need(req, self.prefix_len) - adder.rem_swa_tokens()
        self._unlocked: dict[TreeNode, int] = {}

    def without(self, victim: Req) -> None:
        """Assume that ``victim`` is retracted."""
        self._states_missing -= victim.kv.state_slots_held
        self._room += victim.kv.held_len(self._page_size) + self._adder.kv_expected(victim)
        # Windows that it locks in the tree may be more room; admission will find out.
        self._swa_missing -= victim.kv.swa_held_len(self._page_size)
        self._swa_missing -= self._adder.swa_expected(victim)
        if not victim.kv.is_locked:
            return
        for node in _path(victim.kv.last_node):
            locks = self._unlocked[node] = self._unlocked.get(node, 0) + 1
            if locks == node.full_lock_ref:
                self._room += len(node.value)

    def fits(self) -> bool:
        """Whether the waiting request now fits; like admission, after taking its own locks."""
        to_lock = sum(
            len(node.value)
            for node in self._own
            if node.full_lock_ref == self._unlocked.get(node, 0)
        )
        # These are also an upper limit for the window pool.
        swa_fits = self._swa_missing + self._swa_to_lock() <= 0
        return self._need < self._room - to_lock and swa_fits and self._states_missing <= 0

    def _swa_to_lock(self) -> int:
        return sum(
            len(node.value)
            for node in self._own
            if not node.swa_tombstone and node.swa_lock_ref == 0
        )


def _reusable(pools: Pools, req: Req) -> tuple[int, list[TreeNode]]:
    """Tokens of ``req`` that need no computing, and the nodes that it will lock for them.

    What its session holds is already held and locked.
    """
    req.init_next_round_input()
    session = req.session
    if session is not None and session.session_id in pools.sessions.slots:
        return pools.sessions.cached_len(session.session_id), []
    matched = pools.match_prefix(MatchPrefixParams(key=req.matchable_key()))
    return len(matched.device_indices), _path(matched.last_device_node)


def _path(node: TreeNode | None) -> list[TreeNode]:
    """``node`` and its parents, without the root, which holds nothing."""
    path = []
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    return path
