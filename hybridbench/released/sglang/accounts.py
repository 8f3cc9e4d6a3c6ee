"""Account for the slots of SGLang's pools: free lists, tree, sessions and requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from hybridbench.engine.scheduler.audit import InvariantViolation
from hybridbench.engine.scheduler.pool_stats import PoolStats
from hybridbench.released.books import Claim
from hybridbench.released.sglang.generations import Held
from hybridbench.released.sglang.trees import Part


def slots_of(pages: Any, page_size: int) -> Any:
    """The slots of ``pages``, an int tensor [P], as an int tensor [P * page_size]."""
    return (pages[:, None] * page_size + torch.arange(page_size)).reshape(-1)


class Structures(Protocol):
    """The slot holders of one release."""

    has_windows: bool
    page_size: int

    def tree_parts(self) -> Iterator[Part]:
        """Yield the slots that the nodes of the tree hold."""
        ...

    def free_slots(self) -> Mapping[str, tuple[range, Any]]:
        """By pool: the usable slots, and the free ones."""
        ...

    def admitted(self) -> Sequence[Any]:
        """Requests that may hold slots between two steps."""
        ...

    def waiting(self) -> Sequence[Any]: ...
    def session_records(self) -> Mapping[str, Any]:
        """The record that each session keeps between turns, by session id."""
        ...

    def held(self, record: Any) -> Held:
        """What the record of a request or a session must free."""
        ...

    def row(self, index: int) -> Any:
        """The KV slots of a request's row."""
        ...

    def tracked_until(self, req: Any) -> int | None:
        """The length at which its track buffer last saved a state; None if it has saved none."""
        ...

    def window_of(self, slots: Any) -> Any:
        """The window-pool slot of each KV slot; 0 if it has none."""
        ...


class TreeAccounts:
    """Accounts for the slots of a release with a prefix tree; no call walks the tree twice."""

    def __init__(self, structures: Structures) -> None:
        self._of = structures

    def free_slots(self) -> Mapping[str, tuple[range, Any]]:
        """By pool: the usable slots, and the free ones."""
        return self._of.free_slots()

    def session_records(self) -> Mapping[str, Any]:
        """The record that each session keeps between turns, by session id."""
        return self._of.session_records()

    def miscounts(self) -> list[InvariantViolation]:
        """Nothing: slots have no reference counts."""
        return []

    def stats(self) -> dict[str, PoolStats]:
        """One entry for each existing pool: "kv", "swa", "mamba", "req"."""
        free = self._of.free_slots()
        tree = {pool: [0, 0] for pool in free}
        for pool, slots, locked in self._of.tree_parts():
            tree[pool][locked] += len(slots)
        flying, between, waiting = (self._sums(records) for records in self._holders())
        return {
            pool: PoolStats(
                total=len(slots),
                available=len(unused),
                evictable=tree[pool][False],
                protected=tree[pool][True],
                in_flight=flying.get(pool, 0),
                session_held=between.get(pool, 0),
                waiting_held=waiting.get(pool, 0),
            )
            for pool, (slots, unused) in free.items()
        }

    def held_by_waiting(self) -> dict[str, dict[str, int]]:
        """Slots held by waiting requests: by rid, then by pool."""
        _, _, waiting = self._holders()
        found = {record.rid: self._sums([record]) for record in waiting}
        return {rid: held for rid, held in found.items() if held}

    def claims(self, pool: str) -> Iterable[Claim]:
        """Nodes of the tree, requests and sessions with slots of ``pool``."""
        for part, slots, _ in self._of.tree_parts():
            if part == pool:
                yield Claim("the tree", slots.tolist())
        admitted, between, waiting = self._holders()
        for req in (*admitted, *waiting):
            yield Claim(f"request {req.rid}", self._listed(req, pool))
        for record in between:
            row = self._of.held(record).row
            yield Claim(f"the session with row {row}", self._listed(record, pool))

    def _holders(self) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Records of admitted requests, of sessions between two turns, and of waiting requests.

        A session keeps its record while it is lent to a turn.  The record counts as the turn's once
        the turn is admitted, and as the session's while the turn waits.
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
            for pool, slots in self._slots(record).items():
                if len(slots):
                    sums[pool] = sums.get(pool, 0) + len(slots)
        return sums

    def _listed(self, record: Any, pool: str) -> list[int]:
        slots: list[int] = torch.as_tensor(self._slots(record).get(pool, ())).tolist()
        return slots

    def _slots(self, record: Any) -> dict[str, Any]:
        """Slots, by pool, that a request's or session's record must free: lists or tensors."""
        held = self._of.held(record)
        slots: dict[str, Any] = {"mamba": held.states}
        if held.row is not None:
            kv = self._kv(held)
            slots |= {"req": [held.row], "kv": self._in_pages(kv)}
            if self._of.has_windows:
                slots["swa"] = self._in_pages(self._windows(kv))
        return slots

    def _windows(self, kv: Any) -> Any:
        slots = self._of.window_of(kv)
        return slots[slots > 0]

    def _in_pages(self, slots: Any) -> Any:
        """All slots of the pages that contain ``slots``: whole pages are allocated and freed."""
        size = self._of.page_size
        return slots if size == 1 else slots_of((slots // size).unique(), size)

    def _kv(self, held: Held) -> Any:
        assert held.row is not None
        return self._of.row(held.row)[held.kv_from : held.kv_until]
