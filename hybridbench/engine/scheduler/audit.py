"""Compare each holder's claims, slot by slot, with the other holders' and with the ledger.

Exact but slow, because it walks the pools and the tree: for tests and checkpoints, and to name
missing slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from hybridbench.engine.cache.base import TreeSlots
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.memory.base_pages import BaseTokenToKVPoolAllocator
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import (
    FREE,
    HOST,
    REQ,
    SESSION,
    TRACK,
    TREE,
    Owner,
    owner_name,
)
from hybridbench.engine.memory.slots import MambaSlotAllocator
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator
from hybridbench.engine.req import Req, ReqKv
from hybridbench.engine.scheduler.pools import Pools

_STATE_POOLS = ("mamba", "host_mamba")

# Messages truncate long lists of slots; the violation itself has all of them.
SHOWN_SLOTS = 8


class ViolationKind(StrEnum):
    """The invariant that is violated."""

    RESIDUAL = "residual"  # slots unaccounted for, or counted twice
    WAITING_HELD = "waiting_held"  # a waiting request holds something between steps
    IN_FLIGHT_AT_IDLE = "in_flight_at_idle"
    LOCKED_AT_IDLE = "locked_at_idle"
    ALIAS = "alias"  # one slot has two holders
    LEDGER = "ledger"  # a holder's record and the allocator's ledger differ
    TREE = "tree"  # the cache's own check failed
    LIMIT = "limit"  # a step is larger, or a request waits longer, than configured
    PASSED_OVER = "passed_over"  # a request waits although nothing refuses it
    ENDED_HELD = "ended_held"  # a request that ended still holds something
    UNANSWERED = "unanswered"  # the front end waits for a request that the engine no longer has
    ANSWER = "answer"  # an answer has other tokens than its request, or the wrong number of them


@dataclass(frozen=True)
class InvariantViolation:
    """One violated invariant.

    ``slots`` are the slots concerned, ascending; empty if they were not determined.  ``count`` is
    their number; a residual's count is negative if something is counted twice.
    """

    kind: ViolationKind
    pool: str
    message: str
    slots: tuple[int, ...] = ()
    count: int = 0


@dataclass(frozen=True)
class Claim:
    """A holder's claim to some slots of a pool."""

    holder: str
    owner: Owner
    slots: Sequence[int]


class SlotAudit:
    """Walks the records of requests, sessions and the tree; only valid between two steps."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def audit(self, admitted: Sequence[Req], waiting: Sequence[Req]) -> list[InvariantViolation]:
        """Check that every slot of every pool is claimed exactly once and the ledger agrees.

        Unlike a balanced sum, this cannot miss a slot with two holders and another with none.
        """
        found: list[InvariantViolation] = []
        tree = self._pools.tree_cache.tree_slots()
        for pool in self._pools.names:
            claims = self._claims(pool, tree, admitted, waiting)
            found += _aliases(pool, claims)
            found += self._against_ledger(pool, claims)
        return found + self._rows(admitted, tree)

    def audit_rows(self, admitted: Sequence[Req]) -> list[InvariantViolation]:
        """Check that what the requests and sessions read is still theirs or the tree's, and locked.

        A row that lists KV which has been freed is in no sum, and an idle engine has no such row.
        """
        return self._rows(admitted, self._pools.tree_cache.tree_slots())

    def missing_slots(
        self, pool: str, admitted: Sequence[Req], waiting: Sequence[Req]
    ) -> tuple[int, ...]:
        """Return the slots of ``pool`` neither free nor claimed; does not use the ledger."""
        known = set(self._free_slots(pool))
        tree = self._pools.tree_cache.tree_slots()
        for claim in self._claims(pool, tree, admitted, waiting):
            known.update(claim.slots)
        return tuple(slot for slot in self._all_slots(pool) if slot not in known)

    def last_owner(self, pool: str, slot: int) -> str:
        """Return the holder of ``slot`` according to the ledger; for a lost slot, the last one."""
        if pool in _STATE_POOLS:
            return owner_name(self._state_allocator(pool).owner_of(slot))
        if pool == "req":
            return owner_name(self._pools.req_to_token_pool.rows.owner_of(slot))
        return owner_name(self._kv_allocator(pool).owner_of(slot))

    def req_slots(self, pool: str, req: Req) -> list[int]:
        """Return the slots that ``req``'s record says it must free; for KV, in whole pages."""
        return self._slots_of(pool, req.kv)

    def _slots_of(self, pool: str, kv: ReqKv) -> list[int]:
        if pool == "mamba":
            own = [] if kv.mamba_pool_idx is None else [kv.mamba_pool_idx]
            return own + kv.track_slots
        if kv.req_pool_idx is None or pool == "host_kv" or pool in self._pools.host_parts:
            return []
        if pool == "req":
            return [kv.req_pool_idx]
        table, page_size = self._pools.req_to_token_pool.req_to_token, self._pools.page_size
        own_from = kv.swa_held_from if pool == "swa" else kv.cache_protected_len
        # One position per page: the request also owns the rest of a partly filled page.
        span = slice(own_from, kv.kv_allocated_len, page_size)
        locations = table[kv.req_pool_idx, span].astype(np.int64)
        if pool == "swa":
            locations = self._swa_allocator().translate_loc_from_full_to_swa(locations)
        return self._tokens_of_pages(locations // page_size)

    def _claims(
        self, pool: str, tree: TreeSlots, admitted: Sequence[Req], waiting: Sequence[Req]
    ) -> list[Claim]:
        claims = [
            Claim(f"session {slot.session_id}", SESSION, self._slots_of(pool, slot.kv))
            for slot in self._pools.sessions.idle_slots()
        ]
        for req in (*admitted, *waiting):
            if req.kv.is_empty:
                continue
            slots = self.req_slots(pool, req)
            tracks = req.kv.track_slots if pool == "mamba" else []
            claims.append(Claim(f"request {req.rid}", REQ, slots[: len(slots) - len(tracks)]))
            if tracks:
                claims.append(Claim(f"the track buffer of request {req.rid}", TRACK, tracks))
        if pool == "kv":
            claims.append(Claim("the tree", TREE, tree.kv_indices.tolist()))
            claims += self._transfer_claims(loads=True)
        elif pool == "host_kv":
            claims.append(Claim("the tree", TREE, tree.host_indices.tolist()))
            claims += self._transfer_claims(loads=False)
            claims += self._prefetch_claims()
        elif pool == "swa":
            claims.append(Claim("the tree", TREE, tree.swa_indices.tolist()))
            claims += self._part_claims(pool, loads=True)
        elif pool == "mamba":
            claims.append(Claim("the tree", TREE, tree.mamba_slots))
            claims += self._part_claims(pool, loads=True)
        elif pool in tree.host_slots:
            claims.append(Claim("the tree", TREE, tree.host_slots[pool]))
            claims += self._part_claims(pool.removeprefix("host_"), loads=False)
        return claims

    def _transfer_claims(self, *, loads: bool) -> list[Claim]:
        """Claim the slots that transfers will fill: KV slots for loads, host slots for writes."""
        host_tier = self._pools.host_tier
        if host_tier is None:
            return []
        return [
            Claim(
                f"transfer {ongoing.number}",
                HOST,
                (ongoing.device_indices if loads else ongoing.host_indices).tolist(),
            )
            for ongoing in host_tier.cache_controller.ongoing()
            if ongoing.is_load == loads
        ]

    def _prefetch_claims(self) -> list[Claim]:
        """Claim the slots that prefetches will fill."""
        storage_tier = self._pools.storage_tier
        controller = None if storage_tier is None else storage_tier.storage_controller
        prefetches = [] if controller is None else controller.prefetches()
        return [
            Claim(f"prefetch {ongoing.number}", HOST, ongoing.held().tolist())
            for ongoing in prefetches
        ]

    def _part_claims(self, pool: str, *, loads: bool) -> list[Claim]:
        """Claim the slots that transfers will fill in a pool other than KV.

        ``pool`` is its name on the device.
        """
        host_tier = self._pools.host_tier
        part = self._pools.host_parts.get(f"host_{pool}")
        if host_tier is None or part is None:
            return []
        slots = host_tier.cache_controller.in_flight(part.pool, is_load=loads)
        return [Claim(f"transfers of {pool}", HOST, slots)] if slots else []

    def _free_slots(self, pool: str) -> Iterable[int]:
        if pool in _STATE_POOLS:
            return self._state_allocator(pool).free_slots
        if pool == "req":
            return self._pools.req_to_token_pool.free_slots
        allocator = self._kv_allocator(pool)
        pages = np.concatenate((allocator.free_pages, allocator.release_pages))
        return pages.tolist() if allocator.page_size == 1 else self._tokens_of_pages(pages)

    def _all_slots(self, pool: str) -> range:
        if pool in _STATE_POOLS:
            return range(1, self._state_allocator(pool).size + 1)
        if pool == "req":
            return range(1, self._pools.req_to_token_pool.size + 1)
        allocator = self._kv_allocator(pool)
        page_size = allocator.page_size
        return range(page_size, (allocator.num_pages + 1) * page_size)

    def _state_allocator(self, pool: str) -> MambaSlotAllocator:
        """Return the allocator of "mamba" or "host_mamba"."""
        on_host = pool == "host_mamba"
        return self._pools.host_mamba_allocator if on_host else self._pools.mamba_allocator

    def _kv_allocator(self, pool: str) -> BaseTokenToKVPoolAllocator:
        """Return the allocator of "kv", "swa", "host_kv" or "host_swa"."""
        if pool == "host_kv":
            return self._pools.host_allocator
        if pool == "host_swa":
            return self._pools.host_swa_allocator
        if pool == "swa":
            return self._swa_allocator().swa_attn_allocator
        return self._pools.token_to_kv_pool_allocator

    def _swa_allocator(self) -> SWATokenToKVPoolAllocator:
        allocator = self._pools.swa_allocator
        assert allocator is not None, "there is one KV pool only"
        return allocator

    def _tokens_of_pages(self, pages: IntArray) -> list[int]:
        page_size = self._pools.page_size
        if page_size == 1:
            single: list[int] = pages.tolist()
            return single
        tokens: list[int] = (pages[:, None] * page_size + np.arange(page_size)).ravel().tolist()
        return tokens

    def _ledger_slots(self, pool: str, owner: Owner) -> list[int]:
        if pool in _STATE_POOLS:
            return self._state_allocator(pool).slots_of(owner)
        if pool == "req":
            return self._pools.req_to_token_pool.rows.slots_of(owner)
        slots: list[int] = self._kv_allocator(pool).slots_of(owner).tolist()
        return slots

    def _against_ledger(self, pool: str, claims: Sequence[Claim]) -> list[InvariantViolation]:
        """Check that all claimed slots are in the ledger, and all slots in the ledger claimed."""
        found: list[InvariantViolation] = []
        free = set(self._free_slots(pool))
        for owner in (REQ, TREE, SESSION, TRACK, HOST, FREE):
            claimed = (
                free
                if owner == FREE
                else {slot for claim in claims if claim.owner == owner for slot in claim.slots}
            )
            booked = set(self._ledger_slots(pool, owner))
            name = owner_name(owner)
            for slots, text in (
                (claimed - booked, f"claimed by {name}, but the ledger has another owner"),
                (booked - claimed, f"held by {name} in the ledger, but not claimed by it"),
            ):
                if slots:
                    listed = tuple(sorted(slots))
                    message = f"{pool} pool: slots {shown_slots(listed)} {text}"
                    found.append(InvariantViolation(ViolationKind.LEDGER, pool, message, listed))
        return found

    def _records(self, admitted: Sequence[Req]) -> list[tuple[str, ReqKv]]:
        """Return the named records with a row: admitted requests and sessions between turns."""
        records = [(f"request {req.rid}", req.kv) for req in admitted]
        idle = self._pools.sessions.idle_slots()
        records += [(f"session {slot.session_id}", slot.kv) for slot in idle]
        return [(name, kv) for name, kv in records if kv.req_pool_idx is not None]

    def _locks(self, records: Sequence[tuple[str, ReqKv]]) -> list[InvariantViolation]:
        """Check that each node's KV lock count equals the number of holders at or below it.

        In the window pool a lock counts only as far as its receipt reaches.
        """
        tree = self._pools.tree_cache
        full: Counter[int] = Counter()
        swa: Counter[int] = Counter()
        locks = [(kv.last_node, kv.lock_receipt) for _, kv in records]
        host_tier = self._pools.host_tier
        locks += [] if host_tier is None else host_tier.transfer_locks()
        for node, receipt in locks:
            if node is None or receipt is None:
                continue
            left = receipt.swa_locked_len
            for above in _up_to_root(node, tree.root_node):
                full[above.id] += 1
                swa[above.id] += left > 0
                left -= len(above.value)
        found = []
        for node in tree.iter_nodes():
            there, held = (node.full_lock_ref, node.swa_lock_ref), (full[node.id], swa[node.id])
            if there != held:
                message = (
                    f"tree: node {node.id} counts {there[0]} locks, {there[1]} in the window pool, "
                    f"but its holders have {held[0]} and {held[1]}"
                )
                found.append(InvariantViolation(ViolationKind.TREE, "tree", message))
        return found

    def _rows(self, admitted: Sequence[Req], tree: TreeSlots) -> list[InvariantViolation]:
        records = self._records(admitted)
        return [
            *self._prefixes(records, tree),
            *self._places_in_pages(records),
            *self._locks(records),
        ]

    def _prefixes(
        self, records: Sequence[tuple[str, ReqKv]], tree: TreeSlots
    ) -> list[InvariantViolation]:
        """Check that the protected part of each row belongs to the tree."""
        in_tree = set(tree.kv_indices.tolist())
        table = self._pools.req_to_token_pool.req_to_token
        found = []
        for name, kv in records:
            stale = tuple(sorted(set(table[kv.row, : kv.cache_protected_len].tolist()) - in_tree))
            if stale:
                message = (
                    f"kv pool: {name} reads {shown_slots(stale)}, which the tree no longer holds"
                )
                found.append(InvariantViolation(ViolationKind.ALIAS, "kv", message, stale))
        return found

    def _places_in_pages(self, records: Sequence[tuple[str, ReqKv]]) -> list[InvariantViolation]:
        """Check that the positions of each row fill pages in order, starting at a page border."""
        table, page_size = self._pools.req_to_token_pool.req_to_token, self._pools.page_size
        found = []
        for name, kv in records if page_size > 1 else ():
            slots = table[kv.row, : kv.kv_allocated_len].astype(np.int64)
            place = np.arange(len(slots)) % page_size
            first = slots[np.arange(len(slots)) - place]
            wrong = tuple(
                sorted(slots[(slots != first + place) | (first % page_size != 0)].tolist())
            )
            if wrong:
                message = f"kv pool: {name} has {shown_slots(wrong)} out of place in their pages"
                found.append(InvariantViolation(ViolationKind.ALIAS, "kv", message, wrong))
        return found


def _up_to_root(node: TreeNode, root: TreeNode) -> Iterator[TreeNode]:
    """Yield ``node`` and its ancestors, except the root."""
    on_path: TreeNode | None = node
    while on_path is not None and on_path is not root:
        yield on_path
        on_path = on_path.parent


def _aliases(pool: str, claims: Sequence[Claim]) -> list[InvariantViolation]:
    holder_of: dict[int, str] = {}
    found = []
    for claim in claims:
        for slot in claim.slots:
            other = holder_of.setdefault(slot, claim.holder)
            if other != claim.holder:
                message = f"{pool} pool: slot {slot} is held by {other} and by {claim.holder}"
                found.append(InvariantViolation(ViolationKind.ALIAS, pool, message, (slot,)))
        if len(set(claim.slots)) != len(claim.slots):
            message = f"{pool} pool: {claim.holder} names a slot twice"
            found.append(InvariantViolation(ViolationKind.ALIAS, pool, message))
    return found


def shown_slots(slots: Sequence[int]) -> str:
    """Format ``slots``, truncated after ``SHOWN_SLOTS``."""
    more = f" and {len(slots) - SHOWN_SLOTS} more" if len(slots) > SHOWN_SLOTS else ""
    return f"{list(slots[:SHOWN_SLOTS])}{more}"
