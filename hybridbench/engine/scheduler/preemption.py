"""Choose as few requests as possible to retract when one of higher priority does not fit."""

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

    SGLang adds up only what the victims would still have produced.  This forecast also counts what
    they hold, including prefixes that only they lock.  No request is then retracted in vain: the
    one that needs the room is admitted in the same step.
    """

    def __init__(self, config: EngineConfig, rules: WaitingRules, pools: Pools) -> None:
        self.enabled = config.enable_priority_scheduling and not config.disable_priority_preemption
        self._threshold = config.priority_scheduling_preemption_threshold
        self._rules = rules
        self._pools = pools

    def victims(self, req: Req, running: Sequence[Req], adder: PrefillAdder) -> list[Req]:
        """Return running requests to retract so that ``req`` fits; [] if all are not enough.

        Candidates must have a priority lower by more than the threshold.  The lowest priority comes
        first, and the newest among equals.  Session turns are never candidates: their sessions
        would keep what they hold, which makes no room.  One victim is enough to free a row.
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
    """Forecasts the room for one waiting request as others are retracted one by one.

    A victim frees what it holds and the room promised for its outputs, and unlocks its prefix in
    the tree.  Each node without other locks then becomes evictable, unless it belongs to the
    waiting request's own prefix, which that request will lock.
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
        # The windows it locks in the tree may free more room, which only admission determines.
        self._swa_missing -= victim.kv.swa_held_len(self._page_size)
        self._swa_missing -= self._adder.swa_expected(victim)
        if not victim.kv.is_locked:
            return
        for node in _path(victim.kv.last_node):
            locks = self._unlocked[node] = self._unlocked.get(node, 0) + 1
            if locks == node.full_lock_ref:
                self._room += len(node.value)

    def fits(self) -> bool:
        """Return whether the waiting request now fits, counting its own locks as admission does."""
        to_lock = sum(
            len(node.value)
            for node in self._own
            if node.full_lock_ref == self._unlocked.get(node, 0)
        )
        # For the window pool, whole nodes are an upper bound on what the lock takes.
        swa_fits = self._swa_missing + self._swa_to_lock() <= 0
        return self._need < self._room - to_lock and swa_fits and self._states_missing <= 0

    def _swa_to_lock(self) -> int:
        return sum(
            len(node.value)
            for node in self._own
            if not node.swa_tombstone and node.swa_lock_ref == 0
        )


def _reusable(pools: Pools, req: Req) -> tuple[int, list[TreeNode]]:
    """Return how many tokens of ``req`` are cached, and the nodes that it will lock for them.

    There are no nodes for a session's later turn: its session has locked them already.
    """
    req.init_next_round_input()
    session = req.session
    if session is not None and session.session_id in pools.sessions.slots:
        return pools.sessions.cached_len(session.session_id), []
    matched = pools.match_prefix(MatchPrefixParams(key=req.matchable_key()))
    return len(matched.device_indices), _path(matched.last_device_node)


def _path(node: TreeNode | None) -> list[TreeNode]:
    """Return ``node`` and its ancestors, except the root, which holds nothing."""
    path = []
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    return path
