"""The scheduler's view of the pools and the prefix cache: measure room and make room."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

from hybridbench.engine.cache.base import (
    BasePrefixCache,
    EvictParams,
    MatchPrefixParams,
    MatchResult,
)
from hybridbench.engine.cache.host_part import HostPart
from hybridbench.engine.cache.host_tier import HostTier
from hybridbench.engine.cache.storage_tier import StorageTier
from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.memory.base_pages import BaseTokenToKVPoolAllocator
from hybridbench.engine.memory.extra_pools import Account
from hybridbench.engine.memory.host_pool import HostTokenAllocator
from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.memory.owners import FREE, TREE
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool, ReqToTokenPool
from hybridbench.engine.memory.slots import MambaSlotAllocator
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator
from hybridbench.engine.req import Req, ReqKv
from hybridbench.engine.scheduler.timings import EngineTimings
from hybridbench.engine.sessions.streaming_session import StreamingSession


@dataclass(frozen=True)
class Pools:
    """Request rows, KV positions, the tree that shares them, and the sessions around the tree.

    Requests use the cache through ``sessions``; making room concerns only the tree.  State slots
    exist only with a ``HybridReqToTokenPool``.  For an attention-only model, requests need 0 state
    slots and there is room for 0.  With a ``SWATokenToKVPoolAllocator`` there is a second KV pool,
    for layers that see ``sliding_window_size`` tokens.  Each KV token is allocated in both pools,
    and "KV room" means room in both.

    The set of pools never changes, so these properties, read a dozen times per step, are cached.
    """

    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool_allocator: TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator
    tree_cache: BasePrefixCache
    sessions: StreamingSession
    sliding_window_size: int = 0
    timings: EngineTimings = field(default_factory=EngineTimings)

    @cached_property
    def page_size(self) -> int:
        """KV tokens that are allocated and freed together."""
        return self.token_to_kv_pool_allocator.page_size

    @cached_property
    def hybrid_rows(self) -> HybridReqToTokenPool | None:
        """The rows, if they have state slots."""
        rows = self.req_to_token_pool
        return rows if isinstance(rows, HybridReqToTokenPool) else None

    @cached_property
    def has_states(self) -> bool:
        """Whether there are state slots."""
        return self.hybrid_rows is not None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The existing pools: "kv", "swa" with sliding windows, "mamba" with state slots, "req".

        A host tier adds "host_kv", "host_swa" with windows and "host_mamba" with state slots.
        """
        swa = ("swa",) if self.swa_allocator is not None else ()
        mamba = ("mamba",) if self.has_states else ()
        host_kv = ("host_kv",) if self.host_tier is not None else ()
        return ("kv", *swa, *mamba, "req", *host_kv, *self.host_parts)

    @cached_property
    def host_tier(self) -> HostTier | None:
        """The tree, if it has a host tier."""
        return self.tree_cache if isinstance(self.tree_cache, HostTier) else None

    @cached_property
    def host_parts(self) -> dict[str, HostPart]:
        """The host's parts besides KV, by the name of their pool."""
        host_tier = self.host_tier
        return {} if host_tier is None else {part.name: part for part in host_tier.host_parts}

    @cached_property
    def storage_tier(self) -> StorageTier | None:
        """The tree, if it has storage behind its host tier."""
        tree = self.tree_cache
        if isinstance(tree, StorageTier) and tree.storage_controller is not None:
            return tree
        return None

    @property
    def host_allocator(self) -> HostTokenAllocator:
        """The allocator of the host pool; only with a host tier."""
        assert self.host_tier is not None, "this engine has no host tier"
        return self.host_tier.cache_controller.mem_pool_host.allocator

    @property
    def host_mamba_allocator(self) -> MambaSlotAllocator:
        """The allocator of the host's state slots; only with such slots."""
        account = self.host_parts["host_mamba"].pool.host_account
        assert isinstance(account, MambaSlotAllocator), "states have slots"
        return account

    @property
    def host_swa_allocator(self) -> BaseTokenToKVPoolAllocator:
        """The allocator of the host's window pool; only with such a pool."""
        account = self.host_parts["host_swa"].pool.host_account
        assert isinstance(account, BaseTokenToKVPoolAllocator), "windows have pages"
        return account

    @cached_property
    def swa_allocator(self) -> SWATokenToKVPoolAllocator | None:
        """The allocator of both KV pools, if there are two."""
        allocator = self.token_to_kv_pool_allocator
        return allocator if isinstance(allocator, SWATokenToKVPoolAllocator) else None

    @cached_property
    def mamba_allocator(self) -> MambaSlotAllocator:
        """The allocator of the state slots; only with such slots."""
        return self._state_rows().mamba_allocator

    @property
    def mamba_pool(self) -> MambaPool:
        """The states themselves; only with state slots."""
        return self._state_rows().mamba_pool

    def sizes(self) -> tuple[int, ...]:
        """Return the usable slots of each pool, in the order of ``names``."""
        return tuple(account.size for account in self._accounts)

    def used(self) -> tuple[int, ...]:
        """Return the allocated slots of each pool, in the order of ``names``."""
        return tuple(account.size - account.held(FREE) for account in self._accounts)

    def objections(self) -> dict[str, int]:
        """Return, per pool, the slots that checking ledgers would have refused.

        Counted only in an engine whose ledgers do not check.
        """
        counts = (account.objections for account in self._accounts)
        return dict(zip(self.names, counts, strict=True))

    def held_slots(self, kv: ReqKv) -> dict[str, int]:
        """Return the slots in a request's record by pool, without pools that have none."""
        held = {
            "mamba": kv.state_slots_held,
            "req": int(kv.req_pool_idx is not None),
            "kv": kv.held_len(self.page_size),
            "swa": 0 if self.swa_allocator is None else kv.swa_held_len(self.page_size),
        }
        return {pool: slots for pool, slots in held.items() if slots}

    def rows_wanted(self, req: Req) -> int:
        """Return how many rows ``req`` still needs; a session's later turn already has one."""
        if req.kv.req_pool_idx is not None:
            return 0
        return int(self.sessions.find_active_slot(req) is None)

    def free_rows(self) -> int:
        """Return the number of free request rows."""
        return self.req_to_token_pool.available_size()

    def full_room(self) -> int:
        """Return the free or evictable KV tokens of the pool that keeps all positions."""
        allocator = self.token_to_kv_pool_allocator
        return allocator.full_available_size() + self.tree_cache.evictable_size()

    def swa_room(self) -> int:
        """Return the same for the window pool; 0 without one."""
        allocator = self.swa_allocator
        if allocator is None:
            return 0
        return allocator.swa_available_size() + self.tree_cache.swa_evictable_size()

    def kv_room(self) -> int:
        """Return the KV tokens that can be allocated now, by eviction if necessary."""
        if self.swa_allocator is None:
            return self.full_room()
        return min(self.full_room(), self.swa_room())

    def scarcest_kv_pool(self) -> str:
        """Return the name of the pool that limits ``kv_room``, for messages."""
        is_window = self.swa_allocator is not None and self.swa_room() < self.full_room()
        return "window" if is_window else "KV"

    def mamba_room(self) -> int:
        """Return the state slots that are free, reserved by an open group, or evictable."""
        if not self.has_states:
            return 0
        allocator = self.mamba_allocator
        return (
            allocator.available_size()
            + allocator.group_size()
            + self.tree_cache.mamba_evictable_size()
        )

    def state_slots_wanted(self, req: Req) -> int:
        """Return how many state slots ``req`` still needs: its own and its track buffer's."""
        rows = self.hybrid_rows
        if rows is None:
            return 0
        without_buffer = req.kv.mamba_ping_pong_track_buffer is None
        own = int(req.kv.mamba_pool_idx is None)
        return own + (rows.track_slots_at_alloc if without_buffer else 0)

    def state_slot_group(self, most: int) -> AbstractContextManager[None]:
        """Reserve up to ``most`` state slots for single allocations within the ``with`` block."""
        return self.mamba_allocator.group(most) if self.has_states else nullcontext()

    def empty_tree(self) -> None:
        """Free every slot of the tree and reset the tree; nothing may hold a lock.

        Slots are freed one by one through the allocators.  Clearing the allocators instead would
        silently free lost slots.
        """
        held = self.tree_cache.tree_slots()
        self.token_to_kv_pool_allocator.free(held.kv_indices, TREE)
        if self.has_states:
            self.mamba_allocator.free(held.mamba_slots, TREE)
        if len(held.host_indices):
            self.host_allocator.free(held.host_indices, TREE)
        for name, slots in held.host_slots.items():
            self.host_parts[name].pool.host_account.free(slots, TREE)
        self.tree_cache.reset()

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Return the longest reusable prefix in the cache."""
        timings = self.timings
        started_s = timings.cpu_s()
        result = self.sessions.match_prefix(params)
        timings.match_s += timings.cpu_s() - started_s
        timings.match_calls += 1
        return result

    def cache_finished_req(self, req: Req, *, is_insert: bool) -> None:
        """Let the cache take over a request's KV and state, or free them."""
        timings = self.timings
        started_s = timings.cpu_s()
        self.sessions.cache_finished_req(req, is_insert=is_insert)
        timings.insert_s += timings.cpu_s() - started_s
        timings.insert_calls += 1

    def cache_unfinished_req(self, req: Req, *, chunked: bool = False) -> None:
        """Let the cache share what a request has computed so far."""
        timings = self.timings
        started_s = timings.cpu_s()
        self.sessions.cache_unfinished_req(req, chunked=chunked)
        timings.insert_s += timings.cpu_s() - started_s
        timings.insert_calls += 1

    def count_cache_work(self, counters: EngineCounters) -> None:
        """Copy the cache's own counts into the engine's counters."""
        events = self.tree_cache.events
        counters.match_calls = self.timings.match_calls
        counters.evict_calls = self.timings.evict_calls
        counters.lock_calls = events.lock_calls
        counters.unlock_calls = events.unlock_calls
        counters.cow_copies = events.cow_copies
        counters.node_splits = events.node_splits
        counters.tombstones = events.tombstones
        counters.evict_internal_state = events.evict_internal_state
        counters.evict_leaf = events.evict_leaf
        counters.evict_cascade = events.evict_cascade
        counters.swa_tombstones = events.swa_tombstones
        counters.kv_blocks_stored = events.blocks_stored
        counters.track_donations = events.track_donations
        counters.nodes_evicted = events.nodes_removed
        if self.host_tier is not None:
            _count_host_work(self.host_tier, counters)
        if self.storage_tier is not None:
            _count_storage_work(self.storage_tier, counters)
        counters.session_tail_frees = self.sessions.session_events.tail_frees

    def make_kv_room(self, need_size: int) -> bool:
        """Evict until ``need_size`` KV tokens are free; False if they cannot be."""
        allocator, swa = self.token_to_kv_pool_allocator, self.swa_allocator
        if allocator.available_size() < need_size:
            # From each pool, evict only as much as is missing.
            missing = max(0, need_size - allocator.full_available_size())
            swa_missing = 0 if swa is None else max(0, need_size - swa.swa_available_size())
            self._evict(EvictParams(num_tokens=missing, swa_num_tokens=swa_missing))
        return allocator.available_size() >= need_size

    def make_mamba_room(self, need_size: int) -> bool:
        """Evict until ``need_size`` state slots are free; False if they cannot be."""
        if need_size == 0:
            return True
        allocator = self.mamba_allocator
        missing = need_size - allocator.available_size()
        if missing > 0:
            self._evict(EvictParams(mamba_num=missing))
        return allocator.available_size() >= need_size

    def drop_windows(self) -> bool:
        """Evict all of the tree from the window pool; False if there is nothing to evict."""
        evictable = self.tree_cache.swa_evictable_size()
        if evictable:
            self._evict(EvictParams(swa_num_tokens=evictable))
        return evictable > 0

    def _evict(self, params: EvictParams) -> None:
        timings = self.timings
        started_s = timings.cpu_s()
        self.tree_cache.evict(params)
        timings.evict_s += timings.cpu_s() - started_s
        timings.evict_calls += 1

    def _state_rows(self) -> HybridReqToTokenPool:
        rows = self.hybrid_rows
        assert rows is not None, "an attention-only engine has no state slots"
        return rows

    @cached_property
    def _accounts(self) -> tuple[Account, ...]:
        accounts: list[Account] = [self.token_to_kv_pool_allocator]
        if self.swa_allocator is not None:
            accounts.append(self.swa_allocator.swa_attn_allocator)
        if self.has_states:
            accounts.append(self.mamba_allocator)
        accounts.append(self.req_to_token_pool.rows)
        if self.host_tier is not None:
            accounts.append(self.host_allocator)
        accounts += [part.pool.host_account for part in self.host_parts.values()]
        return tuple(accounts)


def _count_host_work(tree: HostTier, counters: EngineCounters) -> None:
    events, controller = tree.events, tree.cache_controller
    counters.host_backups = events.host_backups
    counters.host_stays = events.host_stays
    counters.host_load_backs = events.host_load_backs
    counters.host_load_back_tokens = events.host_load_back_tokens
    counters.host_evictions = events.host_evictions
    counters.host_evictions_refused = events.host_evictions_refused
    counters.host_writes_refused = events.host_writes_refused
    counters.host_loads_refused = events.host_loads_refused
    counters.host_late_acks = controller.late_acks
    counters.host_failures = controller.failures


def _count_storage_work(tree: StorageTier, counters: EngineCounters) -> None:
    events, controller = tree.events, tree.storage_controller
    assert controller is not None
    counters.storage_backups = events.storage_backups
    counters.storage_prefetches = events.storage_prefetches
    counters.storage_prefetched_tokens = events.storage_prefetched_tokens
    counters.storage_early_stops = events.storage_early_stops
    counters.storage_failures = controller.failures


def no_room_message(req: Req, pools: Pools) -> str:
    """Return a message about ``req``'s needs and the room left, for the client of an abort."""
    need = len(req.origin_input_ids) + req.sampling_params.max_new_tokens
    wanted, room = f"{need} KV tokens", f"{pools.full_room()}"
    if pools.swa_allocator is not None:
        room = f"{room} ({pools.swa_room()} in the window pool)"
    if pools.has_states:
        slots = pools.state_slots_wanted(req)
        wanted = f"{wanted}, {slots} state slot{'s' if slots > 1 else ''}"
        room = f"{room}, {pools.mamba_room()}"
    return (
        f"does not fit the idle engine: it needs {wanted} and 1 row; there is room for {room} "
        f"and {pools.free_rows()}"
    )
