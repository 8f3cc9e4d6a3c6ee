"""Several workloads for one server: each sends its requests until the next pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import Abort, CloseSession, Disconnect, OpenSession, Submit
from hybridbench.workload.actions import Action, TimedWorkload, WaitUntil

_SEPARATOR: Final = "/"


class InTurn:
    """A ``TimedWorkload`` with several ``parts``, of which one submits requests at a time.

    A pause does not end its turn; ``next_turn`` does.  Those that have had a turn still cut off
    their requests and close their sessions.  Ids of requests and sessions begin with the index of
    their part.

    Args:
        names: of the parts, in the same order.
    """

    def __init__(self, parts: Sequence[TimedWorkload], names: Sequence[str]) -> None:
        self.parts = parts
        self._names = names
        self._turn = 0
        self._begun = 1  # number of parts that have had a turn
        self._is_over = False  # the turn, from the next ``resume`` on

    def next_turn(self) -> None:
        """Let ``resume`` begin the turn of the next part, or of the first after the last."""
        self._is_over = True

    def name_of(self, rid: str) -> str:
        """Return the name of the part that submitted the request ``rid``; empty if none did."""
        index, _, own = rid.partition(_SEPARATOR)
        return self._names[int(index)] if own else ""

    @property
    def _current(self) -> TimedWorkload:
        return self.parts[self._turn]

    @property
    def in_flight(self) -> int:
        return sum(part.in_flight for part in self.parts)

    @property
    def failure(self) -> str:
        return next((part.failure for part in self.parts if part.failure), "")

    @property
    def refusal(self) -> str:
        return next((part.refusal for part in self.parts if part.refusal), "")

    @property
    def is_open_loop(self) -> bool:
        return self._current.is_open_loop

    @property
    def due_s(self) -> float:
        return self._current.due_s

    def next_action(self, now_s: float) -> Action:
        due_s = []
        for index, part in enumerate(self.parts[: self._begun]):
            action = part.next_action(now_s)
            if not isinstance(action, WaitUntil):
                return _renamed(action, f"{index}{_SEPARATOR}")
            due_s += [] if action.due_s is None else [action.due_s]
        return WaitUntil(min(due_s, default=None))

    def pause(self, now_s: float) -> None:
        self._current.pause(now_s)

    def resume(self, now_s: float) -> None:
        if self._is_over:
            self._is_over = False
            self._turn = (self._turn + 1) % len(self.parts)
            self._begun = max(self._begun, self._turn + 1)
        self._current.resume(now_s)

    def on_admitted(self, rid: str) -> None:
        part, rid = self._of(rid)
        part.on_admitted(rid)

    def on_first_token(self, rid: str, now_s: float) -> None:
        part, rid = self._of(rid)
        part.on_first_token(rid, now_s)

    def on_finished(self, rid: str, output_ids: Sequence[int], reason: str, now_s: float) -> None:
        part, rid = self._of(rid)
        part.on_finished(rid, output_ids, reason, now_s)

    def on_rejected(self, rid: str, reason: str) -> None:
        part, rid = self._of(rid)
        part.on_rejected(rid, reason)

    def prompt_of(self, rid: str) -> Sequence[int] | None:
        part, rid = self._of(rid)
        return part.prompt_of(rid)

    def counts(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for part in self.parts:
            counts.update(part.counts())
        return dict(counts)

    def describe(self) -> dict[str, JsonValue]:
        return {"kind": "in turn", "parts": [part.describe() for part in self.parts]}

    def _of(self, rid: str) -> tuple[TimedWorkload, str]:
        """Return the part that submitted the request ``rid``, and the id it knows."""
        index, _, own = rid.partition(_SEPARATOR)
        return self.parts[int(index)], own


def _renamed(action: Action, prefix: str) -> Action:
    if isinstance(action, Submit):
        session_id = action.session_id and prefix + action.session_id
        return msgspec.structs.replace(action, rid=prefix + action.rid, session_id=session_id)
    if isinstance(action, Abort | Disconnect):
        return msgspec.structs.replace(action, rid=prefix + action.rid)
    if isinstance(action, OpenSession | CloseSession):
        return msgspec.structs.replace(action, session_id=prefix + action.session_id)
    return action
