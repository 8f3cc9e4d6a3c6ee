"""Traffic in blocks: a fixed number of requests from one seed, then none until the next block."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import Abort, CloseSession, Disconnect, OpenSession, Submit
from hybridbench.workload.actions import Action, WaitUntil, Workload
from hybridbench.workload.build import build_workload
from hybridbench.workload.profile import Profile
from hybridbench.workload.step_paced import StepPaced, is_step_paced


def block_workload(profile: Profile, vocab_size: int, seed: int) -> Workload:
    """Return the workload of one block of ``profile``.

    If nothing in it depends on a clock, it is paced in engine steps, so that all versions get the
    same requests at any speed.
    """
    workload = build_workload(profile, vocab_size, None, seed)
    return StepPaced(workload) if is_step_paced(profile) else workload


class BlockTraffic:
    """A ``Workload`` of consecutive blocks, each with its own inner workload.

    Ids are prefixed with the block's tag, so that late events of an earlier block are recognised.
    Sessions left open are closed at the block's end: the next block would otherwise continue them.
    """

    def __init__(self) -> None:
        self._inner: Workload | None = None
        self._tag = ""
        self._left: int | None = 0  # requests to submit; None is unlimited
        self._ending = False
        self._open_sessions: dict[str, None] = {}
        self.first_submit_s: float | None = None

    def begin(self, inner: Workload, requests: int | None, tag: str) -> None:
        """Begin a block of ``requests`` from ``inner``; None submits until ``stop``."""
        self._inner, self._left, self._tag = inner, requests, tag
        self._ending = False
        self._open_sessions.clear()
        self.first_submit_s = None

    def stop(self) -> None:
        """Submit nothing more of this block; running requests finish."""
        self._left = 0

    @property
    def all_submitted(self) -> bool:
        """Whether the block has no more requests to submit."""
        return self._left == 0

    @property
    def done(self) -> bool:
        """Whether all requests of the block were submitted and have ended."""
        return self._left == 0 and self.in_flight == 0 and not self._open_sessions

    @property
    def in_flight(self) -> int:
        return 0 if self._inner is None else self._inner.in_flight

    @property
    def failure(self) -> str:
        return "" if self._inner is None else self._inner.failure

    def next_action(self, now_s: float) -> Action:
        inner = self._inner
        if inner is None:
            return WaitUntil(None)
        if self._left == 0 and not self._ending:
            self._ending = True
            inner.pause(now_s)
        action = inner.next_action(now_s)
        if isinstance(action, WaitUntil):
            if self._ending and not inner.in_flight and self._open_sessions:
                session_id, _ = self._open_sessions.popitem()
                return CloseSession(session_id)
            return action
        return self._tagged(action, now_s)

    def pause(self, now_s: float) -> None:
        if self._inner is not None:
            self._inner.pause(now_s)

    def resume(self, now_s: float) -> None:
        if self._inner is not None and not self._ending:
            self._inner.resume(now_s)

    def on_admitted(self, rid: str) -> None:
        inner, own = self._addressee(rid)
        if inner is not None:
            inner.on_admitted(own)

    def on_first_token(self, rid: str, now_s: float) -> None:
        inner, own = self._addressee(rid)
        if inner is not None:
            inner.on_first_token(own, now_s)

    def on_finished(self, rid: str, output_ids: Sequence[int], reason: str, now_s: float) -> None:
        inner, own = self._addressee(rid)
        if inner is not None:
            inner.on_finished(own, output_ids, reason, now_s)

    def on_rejected(self, rid: str, reason: str) -> None:
        inner, own = self._addressee(rid)
        if inner is not None:
            inner.on_rejected(own, reason)

    def prompt_of(self, rid: str) -> Sequence[int] | None:
        inner, own = self._addressee(rid)
        return None if inner is None else inner.prompt_of(own)

    @property
    def refusal(self) -> str:
        return "" if self._inner is None else self._inner.refusal

    def counts(self) -> dict[str, int]:
        return {} if self._inner is None else self._inner.counts()

    def describe(self) -> dict[str, JsonValue]:
        return {} if self._inner is None else self._inner.describe()

    def _addressee(self, rid: str) -> tuple[Workload | None, str]:
        if not rid.startswith(self._tag):
            return None, rid
        return self._inner, rid.removeprefix(self._tag)

    def _tagged(self, action: Action, now_s: float) -> Action:
        match action:
            case Submit():
                if self.first_submit_s is None:
                    self.first_submit_s = now_s
                if self._left:
                    self._left -= 1
                session_id = self._tag + action.session_id if action.session_id else ""
                return replace(action, rid=self._tag + action.rid, session_id=session_id)
            case OpenSession():
                session_id = self._tag + action.session_id
                self._open_sessions[session_id] = None
                return replace(action, session_id=session_id)
            case CloseSession():
                session_id = self._tag + action.session_id
                self._open_sessions.pop(session_id, None)
                return CloseSession(session_id)
            case Abort():
                return Abort(self._tag + action.rid)
            case Disconnect():
                return Disconnect(self._tag + action.rid)
            case _:
                return action
