"""Account for the slots of a released engine's pools, by holder.

Free lists, caches, sessions and requests are read one by one.  Values that a release computes about
itself (evictable sizes, its own checks) are not used: they may be what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from hybridbench.engine.scheduler.audit import (
    InvariantViolation,
    ViolationKind,
    shown_slots,
)
from hybridbench.engine.scheduler.pool_stats import PoolStats

_FREE: Final = "the free list"


@dataclass(frozen=True)
class Claim:
    """Slots of one pool that ``holder`` must free; shared ones may have further holders."""

    holder: str
    slots: Sequence[int]
    is_shared: bool = False


class Accounts(Protocol):
    """The slot holders of one release."""

    def free_slots(self) -> Mapping[str, tuple[range, Any]]:
        """By pool: the usable slots, and the free ones."""
        ...

    def stats(self) -> dict[str, PoolStats]:
        """One entry for each existing pool; walks the cache once."""
        ...

    def claims(self, pool: str) -> Iterable[Claim]:
        """Every holder of slots of ``pool``, except its free list."""
        ...

    def held_by_waiting(self) -> dict[str, dict[str, int]]:
        """Slots held by waiting requests: by rid, then by pool."""
        ...

    def session_records(self) -> Mapping[str, Any]:
        """The record that each session keeps between turns, by session id."""
        ...

    def miscounts(self) -> list[InvariantViolation]:
        """Slots whose own reference count contradicts their holders."""
        ...


class Books:
    """Checks the accounts of a release."""

    def __init__(self, accounts: Accounts) -> None:
        self._of = accounts

    def check(self, *, idle: bool) -> list[InvariantViolation]:
        """Return pools whose holders do not account for every slot exactly once.

        With ``idle``, also return slots that are in flight or locked although nothing runs.
        """
        found: list[InvariantViolation] = []
        sessions = bool(self._of.session_records())
        for pool, stats in self._of.stats().items():
            if stats.residual:
                found.append(self._residual(pool, stats))
            if idle and stats.in_flight:
                text = f"{pool} pool: {stats.in_flight} slot(s) in flight with nothing running"
                kind = ViolationKind.IN_FLIGHT_AT_IDLE
                found.append(InvariantViolation(kind, pool, text, count=stats.in_flight))
            if idle and stats.protected and not sessions:
                text = f"{pool} pool: {stats.protected} slot(s) of the tree locked, nothing runs"
                kind = ViolationKind.LOCKED_AT_IDLE
                found.append(InvariantViolation(kind, pool, text, count=stats.protected))
        return found

    def audit(self) -> list[InvariantViolation]:
        """Return slots that have two holders, or are both free and held."""
        found = []
        for pool, (_, free) in self._of.free_slots().items():
            holder_of = dict.fromkeys(map(int, free), _FREE)
            if len(holder_of) < len(free):
                text = (
                    f"{pool} pool: {len(free) - len(holder_of)} slot(s) are twice in its free list"
                )
                found.append(InvariantViolation(ViolationKind.ALIAS, pool, text))
            for claim in self._of.claims(pool):
                for slot in claim.slots:
                    other = holder_of.setdefault(slot, claim.holder)
                    if other != claim.holder and not (claim.is_shared and other != _FREE):
                        text = f"{pool} pool: slot {slot} is held by {other} and by {claim.holder}"
                        kind = ViolationKind.ALIAS
                        found.append(InvariantViolation(kind, pool, text, (slot,)))
        return found + self._of.miscounts()

    def _residual(self, pool: str, stats: PoolStats) -> InvariantViolation:
        count = stats.residual
        what = f"{count} unaccounted" if count > 0 else f"{-count} counted twice"
        missing = self._missing(pool) if count > 0 else ()
        named = f"; missing slots {shown_slots(missing)}" if missing else ""
        text = (
            f"{pool} pool: {what}: available {stats.available} + evictable {stats.evictable} + "
            f"protected {stats.protected} + in flight {stats.in_flight} + sessions "
            f"{stats.session_held} + waiting {stats.waiting_held} != total {stats.total}{named}"
        )
        return InvariantViolation(ViolationKind.RESIDUAL, pool, text, missing, count)

    def _missing(self, pool: str) -> tuple[int, ...]:
        """Slots that are neither free nor held."""
        slots, free = self._of.free_slots()[pool]
        known = set(map(int, free))
        for claim in self._of.claims(pool):
            known.update(claim.slots)
        return tuple(slot for slot in slots if slot not in known)
