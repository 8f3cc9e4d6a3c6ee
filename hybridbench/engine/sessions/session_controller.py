"""Track which sessions are open, what each conversation contains, and when one may be closed.

Source: SGLang's SessionController, for its streaming sessions: one turn at a time, and each turn
appends to the conversation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.req import Req, Session
from hybridbench.engine.sessions.streaming_session import StreamingSession

AbortStage: TypeAlias = Literal["queued", "prefill", "decode"]


class SessionController:
    """Opens, finds, closes and times out sessions; ``StreamingSession`` keeps their slots."""

    def __init__(
        self, cache: StreamingSession, counters: EngineCounters, now_s: Callable[[], float]
    ) -> None:
        """Use ``now_s`` as the engine's clock, in seconds."""
        self._cache = cache
        self._counters = counters
        self._now_s = now_s
        # No session times out before this, because turns only postpone the time-out.
        self._earliest_reap_s = math.inf
        self.sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self.sessions)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self.sessions

    def get(self, session_id: str) -> Session | None:
        """Return the open session with this id, including one that will close after its turn."""
        return self.sessions.get(session_id)

    def open(self, session_id: str, timeout_s: float | None = None) -> bool:
        """Open a session; False if the id is taken."""
        if session_id in self.sessions:
            return False
        now_s = self._now_s()
        self.sessions[session_id] = Session(session_id, timeout_s, now_s)
        if timeout_s is not None:
            self._earliest_reap_s = min(self._earliest_reap_s, now_s + timeout_s)
        self._counters.session_opens += 1
        return True

    def close(self, session_id: str) -> bool:
        """Close a session and free what it holds; False if there is no such session.

        During a turn, its KV must stay: the close waits for the turn's end, and the session accepts
        no further turn.
        """
        session = self.sessions.get(session_id)
        if session is None:
            return False
        if session.is_inflight:
            if not session.close_on_finish:
                self._counters.session_deferred_closes += 1
            session.close_on_finish = True
        else:
            self._close(session_id)
        return True

    def fault_of_turn(self, session_id: str) -> str:
        """Return one sentence on why the session cannot take a turn now; empty if it can."""
        session = self.sessions.get(session_id)
        if session is None:
            return f"there is no session {session_id!r}; open it first"
        if session.close_on_finish:
            return f"session {session_id!r} is being closed"
        if session.is_inflight:
            return f"session {session_id!r} has a turn under way; wait for its end or abort it"
        return ""

    def begin_req(self, session_id: str, req: Req) -> None:
        """Make ``req`` the session's current turn."""
        self.sessions[session_id].begin_req(req, self._now_s())

    def finish_req(self, req: Req) -> None:
        """End the turn, if it is one, of a request that has finished and been released."""
        session = req.session
        if session is None:
            return
        session.finish_req(req, self._now_s())
        self._counters.session_turns += 1
        self._close_deferred(session)

    def note_admission(self, req: Req, reused: int) -> bool:
        """Count a turn that resumes with ``reused`` tokens; False if ``req`` is not one."""
        if self._cache.find_active_slot(req) is None:
            return False
        self._counters.session_restores += 1
        self._counters.session_restored_tokens += reused
        self._counters.session_retries += req.is_retracted
        return True

    def note_retract(self, req: Req) -> None:
        """Count a retract if ``req`` is a turn."""
        self._counters.session_retracts += req.session is not None

    def evict(self) -> bool:
        """Release what the longest-idle session holds; False if there is none."""
        evicted = self._cache.evict_session()
        self._counters.session_evictions += evicted
        return evicted

    def abort_req(self, req: Req, stage: AbortStage) -> None:
        """End the turn, if it is one, of a request that was aborted in ``stage`` and released.

        The session returns to its conversation before the turn.  A slot that has grown beyond that,
        because the turn was retracted and then aborted in the queue, is released.
        """
        session = req.session
        if session is None:
            return
        self._counters.session_abort_queued += stage == "queued"
        self._counters.session_abort_prefill += stage == "prefill"
        self._counters.session_abort_decode += stage == "decode"
        session.abort_req(req, self._now_s())
        if self._cache.cached_len(session.session_id) > len(session.tokens):
            self._cache.release_session(session.session_id)
        self._close_deferred(session)

    def maybe_reap(self) -> None:
        """Close sessions that were idle for too long; a no-op until one can have timed out."""
        now_s = self._now_s()
        if now_s <= self._earliest_reap_s:
            return
        for session_id in [s.session_id for s in self._timed() if s.is_timed_out(now_s)]:
            self._counters.session_timeouts += 1
            self._close(session_id)
        self._earliest_reap_s = min((s.expiry_s(now_s) for s in self._timed()), default=math.inf)

    def seconds_to_reap(self) -> float | None:
        """Seconds until ``maybe_reap`` may have something to do; None if it never will."""
        now_s = self._now_s()
        soonest_s = min((s.expiry_s(now_s) for s in self._timed()), default=None)
        return None if soonest_s is None else max(0.0, soonest_s - now_s)

    def _timed(self) -> Iterator[Session]:
        return (s for s in self.sessions.values() if s.timeout_s is not None)

    def _close_deferred(self, session: Session) -> None:
        """Close the session if a close was waiting for the turn that has ended."""
        if session.close_on_finish:
            self._close(session.session_id)

    def _close(self, session_id: str) -> None:
        self._cache.release_session(session_id)
        del self.sessions[session_id]
        self._counters.session_closes += 1
