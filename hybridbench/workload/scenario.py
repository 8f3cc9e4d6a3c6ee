"""A profile's traffic: seeded, driven by the engine's answers, O(1) memory in run length.

The same seed and the same feedback give the same actions; each purpose has its own random stream,
so that feedback in a different order changes as little as possible.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import (
    Abort,
    CloseSession,
    Disconnect,
    OpenSession,
    Sampling,
    Submit,
)
from hybridbench.workload.actions import Action, WaitUntil
from hybridbench.workload.arrivals import build_arrivals
from hybridbench.workload.client_sessions import ClientSession
from hybridbench.workload.controls import ControlPlan
from hybridbench.workload.conversations import ConversationPool, Turn
from hybridbench.workload.draws import (
    ANSWERED,
    Ending,
    EndingPlan,
    OptionDraws,
    PayloadDraws,
    PriorityDraws,
    SamplingDraws,
    TokenPace,
    spoiled,
)
from hybridbench.workload.profile import Profile
from hybridbench.workload.rng_streams import TokenSource, draw_tokens, stream
from hybridbench.workload.traffic_clock import TrafficClock

_MAX_OVERLONG_BY: Final = 64  # maximum number of tokens by which an overlong prompt is too long


@dataclass(slots=True, eq=False)
class _Live:
    """A request in flight.

    ``turn`` is None for bad input, which belongs to no conversation.  ``overlaps`` is the session
    that was answering a turn when it got this one.
    """

    turn: Turn | None
    ending: Ending
    max_new_tokens: int
    first_token_s: float | None = None
    overlong: bool = False
    overlaps: ClientSession | None = None
    is_retry: bool = False
    # Further submissions with the same id that the engine has not answered yet.
    duplicates: int = 0


class Scenario:
    """A ``Workload`` generated from a profile.

    Memory is bounded by requests in flight, open conversations, and one system prompt per family.
    """

    def __init__(self, profile: Profile, vocab_size: int, seed: int | None = None) -> None:
        """Traffic of ``profile`` over tokens 0 to ``vocab_size - 1``; ``seed`` replaces its own."""
        self._profile = profile
        self._seed = profile.seed if seed is None else seed
        self._vocab_size = vocab_size
        self._clock = TrafficClock()
        self._arrivals = build_arrivals(profile.arrival, stream(self._seed, "arrivals"))
        self._conversations = ConversationPool(profile, vocab_size, self._seed)
        self._endings = EndingPlan(profile.aborts, stream(self._seed, "endings"))
        self._pace = TokenPace()
        self._sampling = SamplingDraws(profile.sampling, vocab_size, stream(self._seed, "sampling"))
        self._priorities = PriorityDraws(profile.priorities, stream(self._seed, "priorities"))
        self._controls = ControlPlan(profile.controls)
        self._payloads = PayloadDraws(profile.prompts, stream(self._seed, "payloads"))
        # Leaving options out changes the requests, so they are drawn from another stream.
        options = stream(self._seed, "options", *profile.options.without)
        self._options = OptionDraws(profile.options, options)
        self._bad = stream(self._seed, "bad input")
        self._bad_tokens = TokenSource(self._seed, vocab_size, "bad input")
        self._live: dict[str, _Live] = {}
        self._urgent: deque[Action] = deque()
        self._cut_at_s: dict[str, float] = {}  # when a decode will be cut, on the driver's clock
        # When the clients of requests waiting for admission give up, earliest first.
        self._patience_ends_s: dict[str, float] = {}
        self._counts = dict.fromkeys(_COUNTS, 0)
        self.due_s = 0.0
        self.refusal = ""

    @property
    def is_open_loop(self) -> bool:
        return self._profile.arrival.process != "closed"

    @property
    def in_flight(self) -> int:
        return len(self._live)

    @property
    def failure(self) -> str:
        # Generated traffic never runs out.
        return ""

    def next_action(self, now_s: float) -> Action:
        urgent = self._next_urgent()
        if urgent is not None:
            return urgent
        ended = self._due_timeout(now_s) or self._due_cut(now_s)
        if ended is not None:
            return ended
        if self._clock.paused:
            return WaitUntil(self._next_due_s(now_s))
        time_s = self._clock.at(now_s)
        control = self._controls.due(time_s)
        if control is not None:
            return control
        self._close(self._conversations.sessions_to_close(time_s))
        urgent = self._next_urgent()
        if urgent is not None:
            return urgent
        has_turn = self._conversations.ready_s(time_s) <= time_s
        if has_turn and self._arrivals.due(time_s, self.in_flight):
            self.due_s = self._clock.moment_s(self._arrivals.arrived_s)
            return self._in_session(self._with_patience(self._submit(), now_s))
        return WaitUntil(self._next_due_s(now_s))

    def _next_urgent(self) -> Action | None:
        """Return the next urgent action, if any; skip aborts of requests that have ended."""
        while self._urgent:
            action = self._urgent.popleft()
            if not isinstance(action, Abort) or action.rid in self._live:
                return action
        return None

    def pause(self, now_s: float) -> None:
        self._clock.pause(now_s)
        if self._sessions_rest_closed:
            self._close(self._conversations.close_sessions())

    def resume(self, now_s: float) -> None:
        self._clock.resume(now_s)

    def on_admitted(self, rid: str) -> None:
        self._patience_ends_s.pop(rid, None)
        live = self._known(rid)
        if live is not None and live.ending is Ending.ABORT_PREFILL:
            self._urgent.append(self._abort(rid, live))

    def on_first_token(self, rid: str, now_s: float) -> None:
        live = self._known(rid)
        if live is None:
            return
        live.first_token_s = now_s
        session = self._session_of(live)
        is_last = live.turn is not None and live.turn.is_last
        if session is not None and session.close_busy and is_last:
            self._end_session(session)
        if live.ending.in_decode:
            tokens = self._endings.tokens_before_cut(live.max_new_tokens)
            self._cut_at_s[rid] = now_s + self._pace.expected_s(tokens)

    def on_finished(self, rid: str, output_ids: Sequence[int], reason: str, now_s: float) -> None:
        live = self._known(rid)
        if live is None:
            return
        if live.overlaps is not None:
            # It was not rejected, so the session holds more than the client knows.
            self._end_session(live.overlaps)
        if live.first_token_s is not None:
            self._pace.learn(now_s - live.first_token_s, len(output_ids) - 1)
        if live.duplicates:
            self._become_duplicate(rid, live, list(output_ids))
            return
        # A session forgets an aborted turn; other conversations continue from the output so far,
        # which is empty if the abort came before the first token.
        kept = self._session_of(live) is None or reason in ANSWERED
        self._forget(rid, live, list(output_ids) if kept else [], now_s)

    def on_rejected(self, rid: str, reason: str) -> None:
        live = self._known(rid)
        if live is None:
            return
        self._counts["rejections"] += 1
        if live.duplicates:
            # The engine answers in order: while both are there, it refuses the second.
            live.duplicates -= 1
            return
        session = self._session_of(live)
        if live.overlaps is not None:
            if not live.is_retry:
                self._try_again(live.overlaps)
        elif session is None:
            if live.turn is not None:
                self._counts["valid_refused"] += 1
                self.refusal = self.refusal or reason
        elif not live.overlong:
            # The session timed out, or its context is full, so it cannot continue.
            self._end_session(session)
        self._forget(rid, live, [], None)

    def prompt_of(self, rid: str) -> Sequence[int] | None:
        live = self._live.get(rid)
        return None if live is None or live.turn is None or live.overlong else live.turn.prompt

    def counts(self) -> dict[str, int]:
        return {**self._counts, "arrivals_dropped": self._arrivals.dropped}

    def describe(self) -> dict[str, JsonValue]:
        return {
            "kind": "profile",
            "profile": self._profile.name,
            "seed": self._seed,
            "vocab_size": self._vocab_size,
        }

    def _submit(self) -> Submit:
        rid = self._next_rid()
        bad = self._profile.bad_input
        draw = self._bad.random()
        if draw < bad.overlong + bad.truncate:
            return self._submit_overlong(rid, truncate=draw >= bad.overlong)
        if draw < bad.overlong + bad.truncate + bad.malformed:
            return self._submit_malformed(rid)
        ending = self._endings.draw()
        turn = self._conversations.next_turn(
            long_input=ending is Ending.ABORT_PREFILL, long_output=ending.in_decode
        )
        live = _Live(turn, ending, turn.max_new_tokens)
        self._live[rid] = live
        sampling = self._sampling.draw(turn.max_new_tokens)
        session = self._session_of(live)
        if session is not None:
            return self._submit_turn(rid, live, turn, sampling)
        size_bytes, payload_seed = self._payloads.draw()
        priority = self._priorities.draw()
        request = self._options.add(
            Submit(
                rid,
                turn.prompt,
                sampling,
                False,
                size_bytes,
                payload_seed,
                priority=priority,
                extra_key=self._extra_key(turn),
            )
        )
        if ending is Ending.ABORT_QUEUED:
            self._urgent.append(self._abort(rid, live))
        elif self._bad.random() < bad.duplicate_ids:
            # Sent at once, so that the first request is certainly still in flight.
            live.duplicates += 1
            self._counts["duplicate_ids"] += 1
            self._urgent.append(request)
        return request

    def _submit_turn(self, rid: str, live: _Live, turn: Turn, sampling: Sampling) -> Submit:
        """Send a session only the new tokens or, now and then, an overlong turn or two at once."""
        session, settings = self._session_of(live), self._profile.sessions
        assert session is not None
        new = turn.prompt[turn.said :]
        if settings.overlong and self._bad.random() < settings.overlong:
            self._counts["session_overlong"] += 1
            live.overlong, live.ending = True, Ending.NATURAL
            new = self._bad_tokens.take(self._profile.pools.max_context_len + 1)
        elif live.ending is Ending.ABORT_QUEUED:
            self._urgent.append(self._abort(rid, live))
        elif settings.overlap and self._bad.random() < settings.overlap:
            self._urgent.append(self._submit_overlapping(session))
        priority = self._priorities.draw()
        return Submit(
            rid,
            new,
            sampling,
            session_id=session.session_id,
            priority=priority,
            extra_key=self._extra_key(turn),
        )

    def _submit_overlapping(self, session: ClientSession, *, is_retry: bool = False) -> Submit:
        """Return another turn for a session that is answering one, or is about to."""
        self._counts["session_overlaps"] += 1
        rid = self._next_rid()
        prompt = self._bad_tokens.take(draw_tokens(self._bad, self._profile.prompts.user_tokens))
        max_new_tokens = draw_tokens(self._bad, self._profile.output.tokens)
        self._live[rid] = _Live(
            None, Ending.NATURAL, max_new_tokens, overlaps=session, is_retry=is_retry
        )
        sampling = self._sampling.draw(max_new_tokens)
        return Submit(rid, prompt, sampling, session_id=session.session_id)

    def _try_again(self, session: ClientSession) -> None:
        """Send the session another turn if it is still answering one."""
        is_busy = any(self._session_of(live) is session for live in self._live.values())
        if is_busy and not self._clock.paused:
            self._urgent.append(self._submit_overlapping(session, is_retry=True))

    def _next_rid(self) -> str:
        self._counts["submitted"] += 1
        return f"r{self._counts['submitted']}"

    def _extra_key(self, turn: Turn) -> str:
        """Return the tenant of its conversation; empty if there is only one."""
        shared = self._profile.prompts.namespaces == 1
        return "" if shared else f"tenant-{turn.conversation.namespace}"

    def _in_session(self, request: Submit) -> Action:
        """Return the request; if its session is not open, queue it and return the opening."""
        session = self._session_of(self._live[request.rid])
        if session is None or session.is_open:
            return request
        session.is_open = True
        self._counts["sessions_opened"] += 1
        self._urgent.appendleft(request)
        return OpenSession(session.session_id, self._profile.sessions.timeout_s or 0.0)

    def _end_session(self, session: ClientSession) -> None:
        """End the session for the client, whether or not a turn is in progress."""
        if session.is_open and not session.abandoned:
            self._close([session.session_id])
        session.is_open = False

    def _close(self, session_ids: Sequence[str]) -> None:
        """Close as soon as possible, in this order."""
        self._counts["sessions_closed"] += len(session_ids)
        self._urgent.extend(CloseSession(session_id) for session_id in session_ids)

    def _session_of(self, live: _Live) -> ClientSession | None:
        return None if live.turn is None else live.turn.conversation.session

    @property
    def _sessions_rest_closed(self) -> bool:
        return self._profile.sessions.at_rest == "closed"

    def _submit_overlong(self, rid: str, *, truncate: bool) -> Submit:
        self._counts["truncate" if truncate else "overlong"] += 1
        length = self._profile.pools.max_context_len + self._bad.randint(1, _MAX_OVERLONG_BY)
        max_new_tokens = draw_tokens(self._bad, self._profile.output.tokens)
        self._live[rid] = _Live(None, Ending.NATURAL, max_new_tokens)
        tokens = self._bad_tokens.take(length)
        return Submit(rid, tokens, self._sampling.draw(max_new_tokens), truncate)

    def _submit_malformed(self, rid: str) -> Submit:
        self._counts["malformed"] += 1
        prompt = self._bad_tokens.take(draw_tokens(self._bad, self._profile.prompts.user_tokens))
        max_new_tokens = draw_tokens(self._bad, self._profile.output.tokens)
        self._live[rid] = _Live(None, Ending.NATURAL, max_new_tokens)
        request = Submit(rid, prompt, self._sampling.draw(max_new_tokens))
        return spoiled(request, self._profile.bad_input, self._bad)

    def _abort(self, rid: str, live: _Live) -> Abort:
        self._counts[live.ending] += 1
        live.ending = Ending.NATURAL  # do not abort it a second time
        return Abort(rid)

    def _with_patience(self, request: Submit, now_s: float) -> Submit:
        timeout_s = self._profile.aborts.queue_timeout_s
        if timeout_s is not None:
            self._patience_ends_s[request.rid] = now_s + timeout_s
        return request

    def _due_timeout(self, now_s: float) -> Action | None:
        # All have the same patience, so the one that has waited longest comes first.
        rid, ends_s = next(iter(self._patience_ends_s.items()), ("", now_s + 1.0))
        if ends_s > now_s:
            return None
        del self._patience_ends_s[rid]
        self._live[rid].ending = Ending.NATURAL  # do not abort it a second time
        self._counts["queue_timeouts"] += 1
        return Abort(rid)

    def _due_cut(self, now_s: float) -> Action | None:
        rid = next((rid for rid, due_s in self._cut_at_s.items() if due_s <= now_s), None)
        if rid is None:
            return None
        live = self._live[rid]
        del self._cut_at_s[rid]
        if live.ending is Ending.ABORT_DECODE:
            return self._abort(rid, live)
        self._counts[Ending.DISCONNECT] += 1
        session = self._session_of(live)
        if session is not None:
            # A client that disconnected does not return to its session.
            self._end_session(session)
        self._forget(rid, live, [], now_s)
        return Disconnect(rid)

    def _next_due_s(self, now_s: float) -> float | None:
        times_s = list(self._cut_at_s.values())
        times_s += [next(iter(self._patience_ends_s.values()))] if self._patience_ends_s else []
        if not self._clock.paused:
            time_s = self._clock.at(now_s)
            arrival_s = self._arrivals.next_s(time_s, self.in_flight)
            if arrival_s is not None:
                arrival_s = max(arrival_s, self._conversations.ready_s(time_s))
            for due_s in (
                arrival_s,
                self._conversations.next_close_s(),
                self._controls.next_s(),
            ):
                if due_s is not None and due_s < math.inf:
                    times_s.append(self._clock.wake_s(due_s, now_s))
        return min(times_s) if times_s else None

    def _known(self, rid: str) -> _Live | None:
        live = self._live.get(rid)
        if live is None:
            self._counts["unknown_reports"] += 1
        return live

    def _become_duplicate(self, rid: str, live: _Live, output_ids: list[int]) -> None:
        # The first finished before its duplicate arrived, so the engine takes the duplicate for a
        # new request: the id stays in flight, and its second answer belongs to no turn.
        if live.turn is not None:
            self._conversations.end(live.turn, output_ids)
        self._cut_at_s.pop(rid, None)
        self._patience_ends_s.pop(rid, None)
        self._live[rid] = _Live(None, Ending.NATURAL, live.max_new_tokens)

    def _forget(self, rid: str, live: _Live, output_ids: list[int], now_s: float | None) -> None:
        del self._live[rid]
        self._cut_at_s.pop(rid, None)
        self._patience_ends_s.pop(rid, None)
        self._counts["ended"] += 1
        if live.turn is not None:
            time_s = 0.0 if now_s is None else self._clock.at(now_s)
            self._conversations.end(live.turn, output_ids, time_s)
            if self._clock.paused and self._sessions_rest_closed:
                self._close(self._conversations.close_sessions())


_COUNTS: Final = (
    "submitted",
    "ended",
    "rejections",
    "valid_refused",
    Ending.ABORT_QUEUED.value,
    Ending.ABORT_PREFILL.value,
    Ending.ABORT_DECODE.value,
    Ending.DISCONNECT.value,
    "overlong",
    "truncate",
    "malformed",
    "queue_timeouts",
    "duplicate_ids",
    "unknown_reports",
    "sessions_opened",
    "sessions_closed",
    "session_overlong",
    "session_overlaps",
)
