"""Account for the slots of a released engine's pools, by holder.

Free lists, tree, sessions and requests are read one by one.  Values that a release computes about
itself (evictable sizes, its own checks) are not used: they may be the fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hybridbench.engine.scheduler.audit import (
    InvariantViolation,
    ViolationKind,
    shown_slots,
)
from hybridbench.engine.scheduler.pool_stats import PoolStats
from hybridbench.released.generations import Held
from hybridbench.released.trees import Reader, walk


class Structures(Protocol):
    """The slot holders of one release; the attributes of SGLang's records are read by name."""

    reader: Reader

    def root(self) -> Any: ...
    def free_slots(self) -> Mapping[str, tuple[int, Any]]:
        """By pool: the number of usable slots, and the free slots."""
        ...

    def admitted(self) -> Sequence[Any]:
        """Requests that may hold slots between two steps."""
        ...

    def waiting(self) -> Sequence[Any]: ...
    def session_records(self) -> Mapping[str, Any]:
        """The record that each session keeps between turns, by session id."""
        ...

    def held(self, record: Any) -> Held:
        """What a request's or a session's record must free."""
        ...

    def row(self, index: int) -> Any:
        """The KV slots of a request's row."""
        ...


@dataclass(frozen=True)
class _Claim:
    holder: str
    slots: Mapping[str, Sequence[int]]


class Books:
    """Accounts for each pool; every call walks the tree once."""

    def __init__(self, structures: Structures) -> None:
        self._of = structures

    def stats(self) -> dict[str, PoolStats]:
        """One entry for each existing pool: "kv", "mamba", "req"."""
        free = self._of.free_slots()
        tree = {pool: [0, 0] for pool in free}
        for node in walk(self._of.root()):
            for pool, slots, locked in self._of.reader(node):
                tree[pool][locked] += len(slots)
        flying, between, waiting = (self._sums(records) for records in self._holders())
        return {
            pool: PoolStats(
                total=size,
                available=len(slots),
                evictable=tree[pool][False],
                protected=tree[pool][True],
                in_flight=flying.get(pool, 0),
                session_held=between.get(pool, 0),
                waiting_held=waiting.get(pool, 0),
            )
            for pool, (size, slots) in free.items()
        }

    def held_by_waiting(self) -> dict[str, dict[str, int]]:
        """Slots held by waiting requests: by rid, then by pool."""
        _, _, waiting = self._holders()
        found = {record.rid: self._sums([record]) for record in waiting}
        return {rid: held for rid, held in found.items() if held}

    def check(self, *, idle: bool) -> list[InvariantViolation]:
        """Pools whose holders do not account for every slot exactly once.

        With ``idle``, also slots in flight or locked although nothing runs.
        """
        found: list[InvariantViolation] = []
        sessions = bool(self._of.session_records())
        for pool, stats in self.stats().items():
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
        """Slots that have two holders, or are both free and held."""
        found = []
        for pool, (_, free) in self._of.free_slots().items():
            holder_of = dict.fromkeys(map(int, free), "the free list")
            if len(holder_of) < len(free):
                text = (
                    f"{pool} pool: {len(free) - len(holder_of)} slot(s) are twice in its free list"
                )
                found.append(InvariantViolation(ViolationKind.ALIAS, pool, text))
            for claim in self._claims(pool):
                for slot in claim.slots.get(pool, ()):
                    other = holder_of.setdefault(slot, claim.holder)
                    if other != claim.holder:
                        text = f"{pool} pool: slot {slot} is held by {other} and by {claim.holder}"
                        kind = ViolationKind.ALIAS
                        found.append(InvariantViolation(kind, pool, text, (slot,)))
        return found

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
        size, free = self._of.free_slots()[pool]
        known = set(map(int, free))
        for claim in self._claims(pool):
            known.update(claim.slots.get(pool, ()))
        # Rows of the oldest releases start at 0, all other slots at 1.
        first = min(known, default=1) and 1
        return tuple(slot for slot in range(first, first + size) if slot not in known)

    def _claims(self, pool: str) -> Iterable[_Claim]:
        for node in walk(self._of.root()):
            for part, slots, _ in self._of.reader(node):
                if part == pool:
                    yield _Claim("the tree", {pool: slots.tolist()})
        admitted, between, waiting = self._holders()
        for req in (*admitted, *waiting):
            yield _Claim(f"request {req.rid}", self._slots(req))
        for record in between:
            row = self._of.held(record).row
            yield _Claim(f"the session with row {row}", self._slots(record))

    def _holders(self) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Records of admitted requests, of sessions between two turns, and of waiting requests.

        A session keeps its record while it is lent to a turn: the record counts with the turn if
        that is admitted, and with the session while it waits.
        """
        held, admitted = self._of.held, self._of.admitted()
        rows = {held(req).row for req in admitted}
        between = [
            record
            for record in self._of.session_records().values()
            if held(record).row is not None and held(record).row not in rows
        ]
        lent = {held(record).row for record in between}
        waiting = [req for req in self._of.waiting() if held(req).row not in lent]
        return admitted, between, waiting

    def _sums(self, records: Iterable[Any]) -> dict[str, int]:
        sums: dict[str, int] = {}
        for record in records:
            for pool, count in self._counts(record).items():
                if count:
                    sums[pool] = sums.get(pool, 0) + count
        return sums

    def _counts(self, record: Any) -> dict[str, int]:
        """Number of slots, by pool, that a request's or session's record must free."""
        held = self._of.held(record)
        counts = {"mamba": len(held.states)}
        if held.row is not None:
            counts |= {"req": 1, "kv": held.kv_until - held.kv_from}
        return counts

    def _slots(self, record: Any) -> dict[str, list[int]]:
        """Slots, by pool, that a request's or session's record must free."""
        held = self._of.held(record)
        slots = {"mamba": held.states}
        if held.row is not None:
            kv = self._of.row(held.row)[held.kv_from : held.kv_until]
            slots |= {"req": [held.row], "kv": kv.tolist()}
        return slots
