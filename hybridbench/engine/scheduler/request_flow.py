"""Where requests are, and how they come in, go back and leave."""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.engine.config import EngineConfig
from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.req import FinishKind, FinishReason, Req
from hybridbench.engine.scheduler.batch import ScheduleBatch
from hybridbench.engine.scheduler.decode import retract_order
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.engine.scheduler.preemption import Preemption
from hybridbench.engine.scheduler.release import RequestRelease
from hybridbench.engine.scheduler.waiting import WaitingRules
from hybridbench.engine.sessions.session_controller import AbortStage, SessionController


class RequestFlow:
    """Waiting queue, running batch, and the request between chunks: the part of a scheduler that
    moves requests between them and lets them go.

    Between steps a waiting request holds nothing, and every other request is in ``running`` or is
    ``chunked_req``.
    """

    def __init__(self, config: EngineConfig, pools: Pools, counters: EngineCounters) -> None:
        self._pools = pools
        self._counters = counters
        self._release = RequestRelease(pools)
        self._rules = WaitingRules(config, pools.timings.now_s)
        self._preemption = Preemption(config, self._rules, pools)
        # A refusal is not repeated until a request leaves the running batch.
        self._batch_is_full = False
        self._abort_requested: list[Req] = []
        self._turned_away = StepOutcome()  # by a full queue since the last step, which will tell
        self.is_paused = False
        self.waiting_queue: list[Req] = []
        self.running: list[Req] = []
        self.chunked_req: Req | None = None
        # Launched, and its results not settled yet; only with overlap, and only between steps.
        self.in_flight: ScheduleBatch | None = None
        self.sessions = SessionController(pools.sessions, counters, pools.timings.now_s)

    def add(self, req: Req) -> None:
        """Queue a new request; if the queue is full, the next step tells who was turned away."""
        self._enqueue(req)
        refused = self._rules.too_many(req, self.waiting_queue)
        if refused is not None:
            self._counters.queue_limit_aborts += 1
            self._abort(refused, self._turned_away)

    def request_abort(self, req: Req, message: str) -> None:
        """Ask that ``req`` ends with the next step; it keeps what it holds until then."""
        if req.to_abort is None and not req.finished:
            req.to_abort = FinishReason(FinishKind.ABORT, message)
            self._abort_requested.append(req)

    def request_abort_all(self, message: str) -> int:
        """Ask that every request ends with the next step; how many had not been asked before."""
        pending = self.aborts_pending
        for req in (*self.waiting_queue, *self.admitted()):
            self.request_abort(req, message)
        return self.aborts_pending - pending

    def pause(self, *, retract: bool) -> None:
        """Schedule nothing until ``resume``; with ``retract`` all who run wait from now on.

        Without it they keep what they hold, and go on from there.  Aborts are settled all the same.
        """
        self.is_paused = True
        self._counters.pauses += 1
        if not retract:
            return
        admitted = self.admitted()
        self.running, self.chunked_req = [], None
        for req in admitted:
            self._retract(req)

    def resume(self) -> None:
        """Go on after ``pause``."""
        self.is_paused = False

    @property
    def has_requests(self) -> bool:
        """Whether a request is waiting or running, or the result of one outstanding."""
        return bool(self.waiting_queue or self.running or self.chunked_req or self.in_flight)

    @property
    def only_waits(self) -> bool:
        """Whether the engine is paused, nobody runs, and no result is outstanding."""
        running = self.running or self.chunked_req or self.in_flight
        return self.is_paused and not running

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        if self._turned_away.aborted or self._abort_requested or self.in_flight:
            return True
        return self.has_requests and not self.is_paused

    @property
    def aborts_pending(self) -> int:
        """Requests that end with the next step."""
        return len(self._abort_requested)

    def admitted(self) -> list[Req]:
        """The requests that may hold slots: running ones and the one between chunks."""
        return [*self.running, self.chunked_req] if self.chunked_req else list(self.running)

    def outrun(self) -> list[Req]:
        """Requests of the batch in flight that have let go of everything since it was formed."""
        batch = self.in_flight
        if batch is None:
            return []
        pairs = zip(batch.reqs, batch.records, strict=True)
        return [req for req, record in pairs if req.kv is not record]

    def settle_aborts(self, outcome: StepOutcome) -> None:
        """End the requests that were asked to, wherever they are, and who waited too long."""
        if self._turned_away.aborted:
            outcome.aborted += self._turned_away.aborted
            self._turned_away = StepOutcome()
        asked, overdue = self._abort_requested, self._rules.overdue(self.waiting_queue)
        if not asked and not overdue:
            return
        self._abort_requested = []
        self._counters.queue_timeouts += len(overdue)
        leaving = [req for req in (*asked, *overdue) if not req.finished]
        for req in self._abort_waiting(leaving, outcome):
            self._abort_admitted(req, outcome)

    def _join_running(self, req: Req) -> None:
        self.running.append(req)
        if self._preemption.enabled:
            # Whoever is blocked may take its place.
            self._batch_is_full = False

    def _retract_one(self) -> bool:
        """Push one running request back; False if nobody can go before the next results."""
        able = [req for req in self.running if not self._awaits_first(req)]
        if not able:
            return False
        self._retract_running(retract_order(able, self._rules.rank)[0])
        return True

    def _awaits_first(self, req: Req) -> bool:
        """Whether the prefill of a session's turn is in flight, and its state has all of it in.

        To go on without that result, it would have to compute the prompt's last token again, from
        the state before it, which is gone.
        """
        batch = self.in_flight
        if batch is None or batch.forward.mode != "extend" or req.session is None:
            return False
        return self._pools.has_states and any(req.kv is record for record in batch.records)

    def _retract_running(self, req: Req) -> None:
        self.running = [other for other in self.running if other is not req]
        self._retract(req)

    def _retract(self, req: Req) -> None:
        """Push a request back into the queue; its outputs stay and are prefilled again."""
        self._release.retract(req)
        req.is_retracted = True
        self._enqueue(req)
        self._batch_is_full = False
        self._counters.retracts += 1
        self.sessions.note_retract(req)

    def _enqueue(self, req: Req) -> None:
        self._rules.entered(req)
        self.waiting_queue.append(req)
        if self._preemption.enabled:
            # It may take the place of somebody who runs.
            self._batch_is_full = False

    def _finish(self, req: Req, outcome: StepOutcome) -> None:
        self._commit_launched(req)
        self._release.release(req, is_insert=True)
        self.sessions.finish_req(req)
        outcome.finished.append(req)
        counters = self._counters
        counters.finishes += 1
        assert req.finished_reason is not None
        if req.finished_reason.kind is FinishKind.STOP:
            counters.finish_stop += 1
        else:
            counters.finish_length += 1

    def _drop_late_token(self, req: Req, batch: ScheduleBatch) -> None:
        """A result for a request that has let go of everything since the batch was formed.

        The KV position of that step went with all the others: here is nothing left to give back.
        """
        del batch
        counters = self._counters
        counters.late_tokens += 1
        if req.finished_reason is not None and req.finished_reason.kind is not FinishKind.ABORT:
            counters.surplus_steps += 1

    def _commit_launched(self, req: Req) -> None:
        """``req`` ends: all steps that were launched for it are final, a surplus step among them.

        That step was given the last token of the request, which is known by now, so KV and state
        are those of the whole text, and the tree may take both.  A step that keeps its states apart
        has moved nothing yet, and never will.
        """
        if self.in_flight is not None and self.in_flight.forward.mode == "decode":
            req.kv.kv_committed_len = req.kv.kv_allocated_len

    def _abort(self, req: Req, outcome: StepOutcome) -> None:
        """End ``req`` at whatever stage it is; it holds nothing afterwards."""
        for admitted in self._abort_waiting([req], outcome):
            self._abort_admitted(admitted, outcome)

    def _abort_waiting(self, leaving: Sequence[Req], outcome: StepOutcome) -> list[Req]:
        """End those who wait, in one walk over the queue however many they are; the others."""
        ids = set(map(id, leaving))
        queued = {id(req) for req in self.waiting_queue if id(req) in ids}
        if not queued:
            return list(leaving)
        self.waiting_queue = [req for req in self.waiting_queue if id(req) not in queued]
        self._counters.abort_queued += len(queued)
        for req in leaving:
            if id(req) in queued:
                self._let_go(req, "queued", outcome)
        return [req for req in leaving if id(req) not in queued]

    def _abort_admitted(self, req: Req, outcome: StepOutcome) -> None:
        if req is self.chunked_req:
            self.chunked_req = None
            self._counters.abort_prefill += 1
            self._let_go(req, "prefill", outcome)
            return
        self.running = [other for other in self.running if other is not req]
        self._counters.abort_decode += 1
        self._commit_launched(req)
        self._let_go(req, "decode", outcome)

    def _let_go(self, req: Req, stage: AbortStage, outcome: StepOutcome) -> None:
        # What a decoding request has computed is whole and worth keeping for the next turn.
        self._release.release(req, is_insert=stage == "decode")
        self.sessions.abort_req(req, stage)
        self._batch_is_full = False
        req.finished_reason = req.to_abort
        outcome.aborted.append(req)
