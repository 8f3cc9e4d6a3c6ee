"""Count each pool's slots by holder, from the holders' records and never from the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from hybridbench.engine.cache.host_part import HostPart
from hybridbench.engine.cache.host_tier import HostTier
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.pools import Pools


@dataclass(frozen=True, slots=True)
class PoolStats:
    """One pool: ``total`` is its usable size (without slot 0); the other fields should sum to it.

    ``kv`` and ``swa`` count tokens in whole pages, ``mamba`` state slots, ``req`` rows; host pools
    use the units of their device counterparts.  A request counts only what it owns: the prefix
    that it reads belongs to the tree and counts as protected there.  Slots that a host-tier
    transfer is filling also count as in flight.
    """

    total: int
    available: int
    evictable: int
    protected: int
    in_flight: int
    session_held: int
    waiting_held: int

    def as_dict(self) -> dict[str, int]:
        """Return all amounts by name, including the residual."""
        return {**asdict(self), "residual": self.residual}

    @property
    def used(self) -> int:
        """Slots that cannot be allocated now, even by eviction."""
        return self.total - self.available - self.evictable

    @property
    def usage(self) -> float:
        """The used share, from 0 to 1."""
        return self.used / self.total

    @property
    def uncached(self) -> int:
        """SGLang's name for what admitted requests hold outside the tree."""
        return self.in_flight

    @property
    def residual(self) -> int:
        """Slots unaccounted for; negative if something is counted twice."""
        return self.total - (
            self.available
            + self.evictable
            + self.protected
            + self.in_flight
            + self.session_held
            + self.waiting_held
        )


class PoolStatsObserver:
    """Sums up each pool from the free lists, the tree, the sessions and the requests.

    A call takes O(requests) and does not walk the pools.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def stats(self, admitted: Sequence[Req], waiting: Sequence[Req]) -> dict[str, PoolStats]:
        """Return the stats of each existing pool, by name.

        Args:
            admitted: requests that may hold slots, between two steps.
            waiting: requests that must not; anything they hold counts as ``waiting_held``.
        """
        # Waiting requests should hold nothing, so this keeps a long queue cheap.
        holding = [req for req in waiting if not req.kv.is_empty]
        lent = self.active_pool_idxs(admitted)
        host_tier = self._pools.host_tier
        stats = {"kv": self._kv(admitted, holding, lent)}
        swa = self._pools.swa_allocator
        if swa is not None:
            stats["swa"] = self._swa(swa, admitted, holding, lent)
        if self._pools.has_states:
            stats["mamba"] = self._mamba(admitted, holding, lent)
        stats["req"] = self._rows(admitted, holding, lent)
        if host_tier is not None:
            stats["kv"] = replace(
                stats["kv"],
                in_flight=stats["kv"].in_flight + host_tier.cache_controller.loading_size(),
            )
            stats["host_kv"] = self._host_kv(host_tier)
            for name, part in self._pools.host_parts.items():
                device = stats[part.pool.name]
                loading = len(host_tier.cache_controller.in_flight(part.pool, is_load=True))
                stats[part.pool.name] = replace(device, in_flight=device.in_flight + loading)
                stats[name] = self._host_part(host_tier, part)
        return stats

    def active_pool_idxs(self, admitted: Sequence[Req]) -> set[int]:
        """Return the rows of admitted requests, which count what they hold for their sessions.

        Otherwise a session's record would count twice while it is lent (sglang#22753).
        """
        if not self._pools.sessions.slots:
            return set()
        return {req.kv.req_pool_idx for req in admitted if req.kv.req_pool_idx is not None}

    def _kv(self, admitted: Sequence[Req], holding: Sequence[Req], lent: set[int]) -> PoolStats:
        tree, sessions = self._pools.tree_cache, self._pools.sessions
        allocator = self._pools.token_to_kv_pool_allocator
        page_size = allocator.page_size
        return PoolStats(
            total=allocator.size,
            available=allocator.full_available_size(),
            evictable=tree.evictable_size(),
            protected=tree.protected_size(),
            in_flight=sum(req.kv.held_len(page_size) for req in admitted),
            session_held=sessions.session_held_tokens(lent),
            waiting_held=sum(req.kv.held_len(page_size) for req in holding),
        )

    def _swa(
        self,
        allocator: SWATokenToKVPoolAllocator,
        admitted: Sequence[Req],
        holding: Sequence[Req],
        lent: set[int],
    ) -> PoolStats:
        tree, sessions = self._pools.tree_cache, self._pools.sessions
        page_size = allocator.page_size
        return PoolStats(
            total=allocator.swa_attn_allocator.size,
            available=allocator.swa_available_size(),
            evictable=tree.swa_evictable_size(),
            protected=tree.swa_protected_size(),
            in_flight=sum(req.kv.swa_held_len(page_size) for req in admitted),
            session_held=sessions.session_held_swa_tokens(lent),
            waiting_held=sum(req.kv.swa_held_len(page_size) for req in holding),
        )

    def _mamba(self, admitted: Sequence[Req], holding: Sequence[Req], lent: set[int]) -> PoolStats:
        tree, sessions = self._pools.tree_cache, self._pools.sessions
        allocator = self._pools.mamba_allocator
        return PoolStats(
            total=allocator.size,
            # Excludes slots reserved by a group, because no group is open between two steps.
            available=allocator.available_size(),
            evictable=tree.mamba_evictable_size(),
            protected=tree.mamba_protected_size(),
            in_flight=sum(req.kv.state_slots_held for req in admitted),
            session_held=sessions.session_held_mamba_slots(lent),
            waiting_held=sum(req.kv.state_slots_held for req in holding),
        )

    def _host_kv(self, tree: HostTier) -> PoolStats:
        allocator = self._pools.host_allocator
        storage_tier = self._pools.storage_tier
        prefetching = 0 if storage_tier is None else storage_tier.prefetching_size()
        return PoolStats(
            total=allocator.size,
            available=allocator.available_size(),
            evictable=tree.host_evictable_size(),
            protected=tree.host_protected_size(),
            in_flight=tree.cache_controller.writing_size() + prefetching,
            session_held=0,
            waiting_held=0,
        )

    def _host_part(self, tree: HostTier, part: HostPart) -> PoolStats:
        account = part.pool.host_account
        return PoolStats(
            total=account.size,
            available=account.available_size(),
            evictable=part.evictable_size(),
            protected=part.protected_size(),
            in_flight=len(tree.cache_controller.in_flight(part.pool, is_load=False)),
            session_held=0,
            waiting_held=0,
        )

    def _rows(self, admitted: Sequence[Req], holding: Sequence[Req], lent: set[int]) -> PoolStats:
        pool, sessions = self._pools.req_to_token_pool, self._pools.sessions
        return PoolStats(
            total=pool.size,
            available=pool.available_size(),
            evictable=0,
            protected=0,
            in_flight=sum(req.kv.req_pool_idx is not None for req in admitted),
            session_held=sessions.session_held_req_count(lent),
            waiting_held=sum(req.kv.req_pool_idx is not None for req in holding),
        )
