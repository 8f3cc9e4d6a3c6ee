"""A closed loop paced by steps instead of seconds, so that its requests do not depend on speed.

Which conversation a client continues next depends on which have been answered by then, so two
engines that serve the same seed at different speeds, or one engine twice, soon get different
requests.  Versions under comparison must get the same ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import Abort, Disconnect, Submit
from hybridbench.workload.actions import Action, WaitUntil, Workload
from hybridbench.workload.draws import ANSWERED
from hybridbench.workload.profile import Profile

_PROMPT_STEPS: Final = 1.0


class _Stage(IntEnum):
    """A request's progress, by counted steps or in the engine."""

    SUBMITTED = 0
    ADMITTED = 1
    FIRST_TOKEN = 2


@dataclass(slots=True, eq=False)
class _Flight:
    """A request in progress: the stage reported to the workload, and the engine's actual stage."""

    rid: str
    admitted_at: float
    first_token_at: float
    ends_at: float
    reported: _Stage = _Stage.SUBMITTED
    reached: _Stage = _Stage.SUBMITTED
    submissions: int = 1
    # The engine's answer to each submission: output and reason, or no output and a refusal.
    answers: list[tuple[Sequence[int] | None, str]] = field(default_factory=list)
    was_cut: bool = False
    pending: Abort | Disconnect | None = None  # a cut waiting for the engine to catch up

    @property
    def next_at(self) -> float:
        """The step at which the workload gets its next report."""
        if self.reported is _Stage.SUBMITTED:
            return self.admitted_at
        if self.reported is _Stage.ADMITTED and self.first_token_at < self.ends_at:
            return self.first_token_at
        return self.ends_at

    @property
    def is_answered(self) -> bool:
        return len(self.answers) >= self.submissions


def is_step_paced(profile: Profile) -> bool:
    """Whether nothing in the traffic of ``profile`` depends on a clock."""
    arrival, controls = profile.arrival, profile.controls
    return (
        arrival.process == "closed"
        and not arrival.think_s
        and arrival.bursts is None
        and arrival.ramp is None
        and not profile.sessions.share
        and profile.aborts.queue_timeout_s is None
        and controls.pause_every_s is None
        and controls.abort_all_every_s is None
    )


class StepPaced:
    """Wraps a ``Workload`` that ``is_step_paced``: the same seed submits the same requests.

    A request takes one step for its prompt and one for each further token; a batch advances in the
    same way, so requests end in nearly the engine's order.  An end is reported to the inner
    workload once its step has come *and* the engine has finished; until then nothing follows.  A
    cut is sent once the engine's request has reached the stage reported to the workload.  The
    output up to a cut is discarded, because its length depends on speed.
    """

    def __init__(self, inner: Workload) -> None:
        self._inner = inner
        self._step = 0.0
        self._flights: dict[str, _Flight] = {}
        # Requests that the workload has disconnected, but the engine has not yet.
        self._left: dict[str, _Flight] = {}
        self._cuts: deque[Abort | Disconnect] = deque()

    @property
    def in_flight(self) -> int:
        return self._inner.in_flight

    @property
    def failure(self) -> str:
        return self._inner.failure

    def next_action(self, now_s: float) -> Action:
        del now_s
        while True:
            if self._cuts:
                return self._cuts.popleft()
            action = self._inner.next_action(self._step)
            match action:
                case WaitUntil(due_s=due):
                    if not self._advance(math.inf if due is None else due):
                        return WaitUntil(None)
                case Abort() | Disconnect():
                    self._cut(action)
                case Submit():
                    self._submitted(action)
                    return action
                case _:
                    return action

    def pause(self, now_s: float) -> None:
        del now_s
        self._inner.pause(self._step)

    def resume(self, now_s: float) -> None:
        del now_s
        self._inner.resume(self._step)

    def on_admitted(self, rid: str) -> None:
        self._reached(rid, _Stage.ADMITTED)

    def on_first_token(self, rid: str, now_s: float) -> None:
        del now_s
        self._reached(rid, _Stage.FIRST_TOKEN)

    def on_finished(self, rid: str, output_ids: Sequence[int], reason: str, now_s: float) -> None:
        del now_s
        self._answered(rid, output_ids, reason)

    def on_rejected(self, rid: str, reason: str) -> None:
        self._answered(rid, None, reason)

    def prompt_of(self, rid: str) -> Sequence[int] | None:
        return self._inner.prompt_of(rid)

    @property
    def refusal(self) -> str:
        return self._inner.refusal

    def counts(self) -> dict[str, int]:
        return self._inner.counts()

    def describe(self) -> dict[str, JsonValue]:
        return {**self._inner.describe(), "time": "steps"}

    def _submitted(self, request: Submit) -> None:
        flight = self._flights.get(request.rid)
        if flight is not None:
            flight.submissions += 1
            return
        first_at = self._step + _PROMPT_STEPS
        ends_at = first_at + request.sampling.max_new_tokens - 1
        self._flights[request.rid] = _Flight(request.rid, self._step, first_at, ends_at)

    def _cut(self, action: Abort | Disconnect) -> None:
        """End the request at the next step, and in the engine once it has reached that stage."""
        flight = self._flights.get(action.rid)
        if flight is None:
            self._cuts.append(action)
            return
        flight.was_cut = True
        flight.ends_at = min(flight.ends_at, self._step + 1.0)
        if isinstance(action, Disconnect):
            del self._flights[action.rid]
        if flight.is_answered:
            return  # the engine was faster
        flight.pending = action
        if isinstance(action, Disconnect):
            self._left[action.rid] = flight
        self._carry_out_cut(flight)

    def _reached(self, rid: str, stage: _Stage) -> None:
        flight = self._flights.get(rid) or self._left.get(rid)
        if flight is not None:
            flight.reached = max(flight.reached, stage)
            self._carry_out_cut(flight)

    def _carry_out_cut(self, flight: _Flight) -> None:
        if flight.pending is not None and flight.reached >= flight.reported:
            self._cuts.append(flight.pending)
            flight.pending = None
            self._left.pop(flight.rid, None)

    def _answered(self, rid: str, output_ids: Sequence[int] | None, reason: str) -> None:
        """Record that the engine ended a submission; it is reported when its step has come."""
        if self._left.pop(rid, None) is not None:
            return
        flight = self._flights.get(rid)
        if flight is not None:
            flight.answers.append((output_ids, reason))
            if flight.is_answered:
                flight.pending = None  # the cut came too late
        else:
            self._tell_end(rid, output_ids, reason)

    def _advance(self, due: float) -> bool:
        """Advance to the next event, or to step ``due``; False if the engine is not there yet."""
        flight = min(self._flights.values(), key=lambda flight: flight.next_at, default=None)
        next_at = math.inf if flight is None else flight.next_at
        if self._step < due <= next_at and due < math.inf:
            self._step = due
            return True
        if flight is None:
            return False
        if flight.reported is _Stage.SUBMITTED:
            self._step = max(self._step, next_at)
            flight.reported = _Stage.ADMITTED
            self._inner.on_admitted(flight.rid)
        elif flight.reported is _Stage.ADMITTED and next_at < flight.ends_at:
            self._step = max(self._step, next_at)
            flight.reported = _Stage.FIRST_TOKEN
            self._inner.on_first_token(flight.rid, self._step)
        elif flight.is_answered:
            self._step = max(self._step, next_at)
            del self._flights[flight.rid]
            for output_ids, reason in flight.answers:
                is_void = flight.was_cut and output_ids is not None
                self._tell_end(flight.rid, () if is_void else output_ids, reason)
        else:
            return False
        return True

    def _tell_end(self, rid: str, output_ids: Sequence[int] | None, reason: str) -> None:
        if output_ids is None:
            self._inner.on_rejected(rid, reason)
        else:
            kept = output_ids if reason in ANSWERED else ()
            self._inner.on_finished(rid, kept, reason, self._step)
