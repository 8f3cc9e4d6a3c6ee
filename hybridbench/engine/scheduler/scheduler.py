"""Decide what runs next, which requests join, and how requests leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hybridbench.engine.cache.base import MatchPrefixParams
from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.lineage import Passed
from hybridbench.engine.next_token import NextTokens, TokenLogprobs
from hybridbench.engine.req import FinishKind, FinishReason, Req
from hybridbench.engine.scheduler.batch_builder import BatchBuilder, resolve_future_token_ids
from hybridbench.engine.scheduler.decode import (
    DecodeRoom,
    NewTokenRatioTracker,
    retract_order,
)
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.policy import SchedulePolicy
from hybridbench.engine.scheduler.pools import Pools, no_room_message
from hybridbench.engine.scheduler.preemption import Preemption
from hybridbench.engine.scheduler.prefill import AddReqResult, PrefillAdder, PrefillLimits
from hybridbench.engine.scheduler.release import RequestRelease
from hybridbench.engine.scheduler.schedule_batch import ChainsToCome, ScheduleBatch
from hybridbench.engine.scheduler.tracking import StateTracker, TrackLimits
from hybridbench.engine.scheduler.verify import DraftVerifier
from hybridbench.engine.scheduler.waiting import WaitingRules
from hybridbench.engine.scheduler.window import WindowRelease
from hybridbench.engine.sessions.session_controller import AbortStage, SessionController
from hybridbench.engine.speculative.drafter import Drafter
from hybridbench.foundation.engine_config import EngineConfig

# Replaces the last token of a request that got none.
NO_TOKEN = 0


class Scheduler:
    """Decides which requests run next, and processes the results of their steps.

    One step is ``settle_aborts``, ``schedule``, ``lay_out``, the model, ``accept``, ``settle``.

    With overlap, ``accept``, ``lay_out`` and ``settle`` get the previous step's batch, and
    ``launched`` gets this step's.  A device executes its work in order, so a slot may be freed, or
    a state copied, as soon as the last step that uses it has been launched.

    Between steps a waiting request holds nothing, and every other request is in ``running`` or is
    ``chunked_req``.
    """

    def __init__(
        self,
        config: EngineConfig,
        pools: Pools,
        counters: EngineCounters,
        drafter: Drafter | None = None,
    ) -> None:
        """With a ``drafter``, verify chains of up to ``speculative_num_draft_tokens`` tokens."""
        self._config = config
        self._pools = pools
        self._counters = counters
        self._release = RequestRelease(pools)
        swa = pools.swa_allocator
        self._window = None if swa is None else WindowRelease(pools, swa, counters)
        self._host_tier = pools.host_tier
        self._rules = WaitingRules(config, pools.timings.now_s)
        self._preemption = Preemption(config, self._rules, pools)
        # After a refusal, admission is not tried again until a request leaves the running batch.
        self._batch_is_full = False
        self._abort_requested: list[Req] = []
        self._turned_away = StepOutcome()  # refused by a full queue; the next step reports them
        self.is_paused = False
        self.waiting_queue: list[Req] = []
        self.running: list[Req] = []
        self.chunked_req: Req | None = None
        # Number of requests that still wait although the last step had room for all.
        self.passed_over = 0
        # Launched, but not settled; only with overlap, and only between steps.
        self.in_flight: ScheduleBatch | None = None
        self.sessions = SessionController(pools.sessions, counters, pools.timings.now_s)
        self._decode_tokens = 1 if drafter is None else config.speculative_num_draft_tokens
        self._drafts = drafter is not None
        self._tracker = StateTracker(pools, TrackLimits.of(config), counters)
        self._builder = BatchBuilder(pools, config.page_size, self._tracker)
        self._verifier = DraftVerifier(
            drafter, self._decode_tokens, self._builder, pools, self._release, counters
        )
        self._decode_room = DecodeRoom(pools, config.page_size)
        self._ratio = NewTokenRatioTracker(config.new_token_ratio)
        self._policy = SchedulePolicy(
            config.schedule_policy, self._cached_prefix_len, self._rules.rank
        )

    def add(self, req: Req) -> None:
        """Queue a new request; if the queue is full, the next step reports the refused one."""
        self._enqueue(req)
        refused = self._rules.too_many(req, self.waiting_queue)
        if refused is not None:
            self._counters.queue_limit_aborts += 1
            self._abort(refused, self._turned_away)
        if refused is not req:
            self._prefetch(req)

    def request_abort(self, req: Req, message: str) -> None:
        """End ``req`` with the next step; it keeps what it holds until then."""
        if req.to_abort is None and not req.finished:
            req.to_abort = FinishReason(FinishKind.ABORT, message)
            self._abort_requested.append(req)

    def request_abort_all(self, message: str) -> int:
        """End every request with the next step; return how many aborts this adds."""
        pending = self.aborts_pending
        for req in (*self.waiting_queue, *self.admitted()):
            self.request_abort(req, message)
        return self.aborts_pending - pending

    def pause(self, *, retract: bool) -> None:
        """Schedule nothing until ``resume``; aborts are still settled.

        With ``retract``, running requests return to the queue.  Otherwise they keep what they hold
        and continue from there.
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
        """Resume after ``pause``."""
        self.is_paused = False

    @property
    def has_requests(self) -> bool:
        """Whether any request is waiting or running, or a result is outstanding."""
        return bool(self.waiting_queue or self.running or self.chunked_req or self.in_flight)

    @property
    def has_transfers(self) -> bool:
        """Whether a transfer between device, host and storage is in flight."""
        return self._host_tier is not None and self._host_tier.has_transfers

    @property
    def only_waits(self) -> bool:
        """Whether the engine is paused, with nothing running and no result or transfer pending."""
        running = self.running or self.chunked_req or self.in_flight or self.has_transfers
        return self.is_paused and not running

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        if self._turned_away.aborted or self._abort_requested or self.in_flight:
            return True
        if self.has_transfers:
            return True
        return self.has_requests and not self.is_paused

    @property
    def aborts_pending(self) -> int:
        """Number of requested aborts, which the next step settles."""
        return len(self._abort_requested)

    def admitted(self) -> list[Req]:
        """Return the requests that may hold slots: running ones and the one between chunks."""
        return [*self.running, self.chunked_req] if self.chunked_req else list(self.running)

    def outrun(self) -> list[Req]:
        """Return the requests of the batch in flight that were released since it was formed."""
        batch = self.in_flight
        if batch is None:
            return []
        pairs = zip(batch.reqs, batch.records, strict=True)
        return [req for req, record in pairs if req.kv is not record]

    def settle_aborts(self, outcome: StepOutcome) -> None:
        """End aborted requests, at any stage, and those that waited too long."""
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

    def schedule(self, outcome: StepOutcome) -> ScheduleBatch | ChainsToCome | None:
        """Return the next batch: a prefill if possible, otherwise a decode; None if neither."""
        if self._host_tier is not None:
            self._host_tier.check_hicache_events()
        if self.is_paused:
            return None
        if self._window is not None:
            self._window.release(self.admitted())
        batch = self._next_prefill(outcome)
        return batch if batch is not None else self._next_decode(outcome)

    def lay_out(
        self,
        planned: ScheduleBatch | ChainsToCome,
        previous: ScheduleBatch | None = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> ScheduleBatch:
        """Complete ``planned`` with the ``tokens`` that the ``previous`` step's requests got."""
        if isinstance(planned, ChainsToCome):
            records = () if previous is None else previous.records
            news = zip(records, tokens, strict=True)
            return self._verifier.lay_out(planned, {id(record): new for record, new in news})
        if previous is None:
            return planned
        # A request that was released since then does not need its token.
        last = [new[-1] if new else NO_TOKEN for new in tokens]
        return replace(planned, forward=resolve_future_token_ids(planned.forward, last))

    def launched(self, batch: ScheduleBatch | None) -> None:
        """With overlap only: record that ``batch`` (None if nothing runs) has been launched.

        Its results come with the next step, which may by then have advanced the state.  A prefill's
        KV does not depend on its results, so its prompts are inserted into the tree now.
        """
        self.in_flight = batch
        if batch is None or batch.forward.mode != "extend":
            return
        self._tracker.complete(batch)
        for req in batch.reqs:
            req.kv.kv_committed_len = req.kv.kv_allocated_len
            if req is batch.chunked_req:
                self._stash_chunk(req)
            else:
                self._pools.cache_unfinished_req(req)
                self._join_running(req)

    def accept(self, batch: ScheduleBatch, chosen: NextTokens) -> Sequence[Sequence[int]]:
        """Return the tokens that each request of a batch gets.

        With drafts, these are the accepted tokens, and the states after them are copied into the
        requests' slots.  The next step reads those states, so this must come before it, even if
        the batch is settled later.

        Args:
            batch: ran in this step, or with overlap in the previous one.
            chosen: a token per request of the batch; with drafts, one for each of its new tokens.
                Their logprobs are stored with the requests.
        """
        tokens: Sequence[Sequence[int]]
        if batch.drafts is None:
            tokens = list(zip(chosen.ids))
        else:
            tokens = self._verifier.accept(batch, chosen.ids)
            self._tracker.complete_verified(batch, list(map(len, tokens)))
        if chosen.logprobs:
            _store_logprobs(chosen.logprobs, batch, tokens)
        return tokens

    def settle(
        self, batch: ScheduleBatch, tokens: Sequence[Sequence[int]], outcome: StepOutcome
    ) -> None:
        """Process the tokens of a batch that ran: commit KV and finish completed requests.

        Args:
            batch: ran in this step, or with overlap in the previous one.
            tokens: the result of ``accept``; the entry of ``chunked_req`` is ignored.
            outcome: receives the requests that got a token and those that finished.
        """
        is_prefill = batch.forward.mode == "extend"
        to_share = is_prefill and not self._config.enable_overlap_schedule
        if to_share or not is_prefill:
            self._tracker.complete(batch)
        chunked_req, produced = batch.chunked_req, outcome.produced
        # Without overlap, unused room for draft tokens is freed at once.
        frees_tails = self._drafts and not self._config.enable_overlap_schedule
        rows = zip(batch.reqs, batch.records, _seq_lens(batch, tokens), tokens, strict=True)
        allocator = self._pools.token_to_kv_pool_allocator
        # Nothing is allocated before the end, so all frees are grouped into one.
        allocator.free_group_begin()
        try:
            for req, record, seq_len, new in rows:
                if req is chunked_req:
                    if to_share:
                        record.kv_committed_len = seq_len
                        self._stash_chunk(req)
                    continue
                if req.kv is not record:
                    self._drop_late_token(req)
                    continue
                record.kv_committed_len = seq_len
                for token_id in new:
                    req.append_token(token_id)
                    produced.append(req)
                if frees_tails:
                    self._verifier.free_tail(req)
                if req.finished_reason is not None:
                    self._finish(req, outcome)
                elif to_share:
                    # From now on, other requests may reuse the prompt.
                    self._pools.cache_unfinished_req(req)
                    self._join_running(req)
        finally:
            allocator.free_group_end()
        self._end_settling(outcome)

    def _end_settling(self, outcome: StepOutcome) -> None:
        self._counters.output_tokens += len(outcome.produced)
        if outcome.finished:
            self.running = [req for req in self.running if not req.finished]
            self._batch_is_full = False

    # Prefill.

    def _next_prefill(self, outcome: StepOutcome) -> ScheduleBatch | None:
        self.passed_over = 0
        if self.chunked_req is None and not self._may_admit():
            return None
        self._policy.sort(self.waiting_queue)
        adder = self._new_adder()
        self._continue_chunk(adder)
        self._admit(adder)
        if not adder.can_run_list:
            self._give_up_on_head(adder, outcome)
            return None
        forward = self._builder.extend(adder.can_run_list)
        if forward is None:
            self._roll_back(adder.can_run_list)
            return None
        self._note_admissions(adder, outcome)
        self.chunked_req = adder.new_chunked_req
        self._counters.prefill_steps += 1
        self._counters.prompt_tokens += len(forward.input_ids)
        return ScheduleBatch.of(adder.can_run_list, forward, adder.new_chunked_req)

    def _may_admit(self) -> bool:
        return bool(self.waiting_queue) and not (self._batch_is_full and self.running)

    def _new_adder(self) -> PrefillAdder:
        config = self._config
        limits = PrefillLimits(
            rem_input_tokens=config.max_prefill_tokens,
            rem_chunk_tokens=config.chunked_prefill_size,
            decode_tokens=self._decode_tokens,
            cut_at_branching=config.cache_branching_states and not config.tracks_states,
        )
        return PrefillAdder(self._pools, self._release, limits, self.running, self._ratio.value)

    def _continue_chunk(self, adder: PrefillAdder) -> None:
        req = self.chunked_req
        if req is not None and not adder.add_chunked_req(req):
            self.chunked_req = None
            self._retract(req)

    def _admit(self, adder: PrefillAdder) -> None:
        if not self._may_admit():
            return
        result = adder.admit_from(self.waiting_queue)
        if self._preemption.enabled and result is AddReqResult.NO_TOKEN:
            result = self._admit_by_preemption(adder)
        self._batch_is_full = result is AddReqResult.NO_TOKEN
        if not adder.sent_back:
            self.passed_over = self._count_passed_over(adder, result)
        if adder.refused is None:
            if result is not AddReqResult.CONTINUE and adder.can_run_list:
                last = adder.can_run_list[-1]
                last.passed |= Passed.ENDED_ADMISSION
                # Only a prefix hit takes a state slot before admission is decided.
                if len(last.kv.prefix_indices):
                    last.passed |= Passed.ENDED_AFTER_HIT
        else:
            adder.refused.passed |= Passed.REFUSED
            self._counters.refusals += 1

    def _count_passed_over(self, adder: PrefillAdder, result: AddReqResult) -> int:
        """Count requests left waiting although none was refused and rows are free."""
        if result is AddReqResult.CONTINUE:
            added = sum(req is not self.chunked_req for req in adder.can_run_list)
            return len(self.waiting_queue) - added - adder.awaiting
        # If no request was considered at all, only a lack of rows is a valid reason.
        considered = result is AddReqResult.OTHER or adder.refused or adder.can_run_list
        return 0 if considered or not self._pools.free_rows() else len(self.waiting_queue)

    def _admit_by_preemption(self, adder: PrefillAdder) -> AddReqResult:
        """Continue admission where the queue was blocked, while requests can be preempted."""
        # The copy excludes preempted requests, which wait at least one step.
        queue = list(self.waiting_queue)
        result = AddReqResult.NO_TOKEN
        while result is AddReqResult.NO_TOKEN:
            added = set(map(id, adder.can_run_list))
            queue = [req for req in queue if id(req) not in added]
            if not queue or not self._preempt(queue[0], adder):
                break
            result = adder.admit_from(queue)
        return result

    def _preempt(self, req: Req, adder: PrefillAdder) -> bool:
        """Retract running requests so that ``req`` fits; False if that is impossible."""
        victims = self._preemption.victims(req, self.running, adder)
        for victim in victims:
            adder.forget_running(victim)
            self._retract_running(victim)
        self._counters.preemptions += len(victims)
        return bool(victims)

    def _note_admissions(self, adder: PrefillAdder, outcome: StepOutcome) -> None:
        fresh = [req for req in adder.can_run_list if req is not self.chunked_req]
        counters = self._counters
        for req in fresh:
            counters.admissions += 1
            reused = len(req.kv.prefix_indices)
            if not self.sessions.note_admission(req, reused) and reused:
                counters.prefix_hits += 1
                counters.prefix_hit_tokens += reused
            if req.is_retracted:
                counters.retract_retries += 1
                continue
            req.cached_tokens = reused
            outcome.admitted.append(req)
        if fresh:
            taken = set(map(id, fresh))
            self.waiting_queue = [req for req in self.waiting_queue if id(req) not in taken]

    def _give_up_on_head(self, adder: PrefillAdder, outcome: StepOutcome) -> None:
        """Abort a request that was refused although no other request holds anything.

        It would be refused in every later step.  Requests that do not fit an empty engine are
        rejected at submission, so this happens only when slots have been lost.  Before the abort,
        idle sessions are evicted, one per step, and then all windows of the tree: the request locks
        its own prefix's windows in whole nodes, which may leave too little room.
        """
        if self.running or self.chunked_req is not None or adder.sent_back or self.has_transfers:
            return
        if self.waiting_queue and self.sessions.evict():
            return
        req = adder.refused
        if req is None or self._pools.drop_windows():
            return
        req.to_abort = FinishReason(FinishKind.ABORT, no_room_message(req, self._pools))
        self._abort(req, outcome)
        self._counters.abort_no_room += 1

    def _roll_back(self, admitted: Sequence[Req]) -> None:
        """Return all to the queue, because an allocation failed although admission saw room."""
        for req in admitted:
            if req is self.chunked_req:
                self.chunked_req = None
                self._retract(req)
            else:
                self._release.release(req, is_insert=False)
        self._counters.rollbacks += 1

    def _stash_chunk(self, req: Req) -> None:
        """Insert the chunks computed so far into the tree, for other requests to reuse."""
        self._pools.cache_unfinished_req(req, chunked=True)
        req.passed |= Passed.CHUNKED
        self._counters.prefill_chunks += 1

    def _cached_prefix_len(self, req: Req) -> int:
        """Return how many tokens of ``req`` are cached now; takes no slot or lock."""
        if req.session is not None and req.session.session_id in self._pools.sessions.slots:
            return self._pools.sessions.cached_len(req.session.session_id)
        req.init_next_round_input()
        key = req.matchable_key()
        return len(self._pools.match_prefix(MatchPrefixParams(key=key)).device_indices)

    # Decode.

    def _next_decode(self, outcome: StepOutcome) -> ScheduleBatch | ChainsToCome | None:
        retracted = self._make_room_for_decode(outcome)
        batch = self._decode_batch()
        while batch is None and self.running and not self._awaits_last():
            # There was room, but an allocation failed; it may succeed with one request fewer.
            if not self._retract_one():
                break
            retracted = True
            batch = self._decode_batch()
        if retracted:
            self._ratio.reestimate(self.running)
        if batch is None:
            return None
        if not retracted:
            self._ratio.decay()
        self._counters.decode_steps += 1
        return batch

    def _decode_batch(self) -> ScheduleBatch | ChainsToCome | None:
        """Form a decode or verify step of all running requests; None without requests or room."""
        if not self.running:
            return None
        if self._must_be_revocable():
            return self._verifier.reserve(self.running, self.in_flight)
        batch = self._verifier.batch(self.running) if self._drafts else None
        if batch is not None:
            return batch
        forward = self._builder.decode(self.running, self.in_flight)
        return None if forward is None else ScheduleBatch.of(list(self.running), forward)

    def _must_be_revocable(self) -> bool:
        """Whether the next decode step must keep its states separate until its results are in.

        With overlap, steps with draft tokens must, because it is not yet known how many will be
        accepted.  So must steps with a session's turn: a turn retracted before the results resumes
        from the token before.
        """
        if not self._config.enable_overlap_schedule:
            return False
        if self._drafts:
            return True
        return self._pools.has_states and any(req.session is not None for req in self.running)

    def _next_token_fits(self) -> bool:
        if self._must_be_revocable():
            return self._verifier.fits(self.running, self.in_flight)
        return self._decode_room.fits(self.running)

    def _awaits_last(self) -> bool:
        """Whether to wait for the only running request instead of retracting or aborting it.

        Its pending result may show that it has finished, or a transfer may end and free room.
        """
        return len(self.running) == 1 and (self.in_flight is not None or self.has_transfers)

    def _make_room_for_decode(self, outcome: StepOutcome) -> bool:
        """Retract requests until the others can continue; abort the last one if it cannot.

        Before that abort, idle sessions are evicted, including those of retracted turns.
        """
        retracted = False
        while self.running and not self._next_token_fits():
            if self._awaits_last():
                break
            if len(self.running) > 1:
                if not self._retract_one():
                    break
                retracted = True
                continue
            if self.sessions.evict():
                continue
            req = self.running[0]
            req.to_abort = FinishReason(
                FinishKind.ABORT,
                f"the {self._pools.scarcest_kv_pool()} pool has no room for token {req.seqlen} of "
                "this request, which is the only one running",
            )
            self._abort(req, outcome)
            self._counters.abort_no_room += 1
        return retracted

    # Admit, retract, release.

    def _join_running(self, req: Req) -> None:
        if self.running:
            req.passed |= Passed.BESIDE_OTHERS
        if req.began_load_back:
            req.passed |= Passed.LOADED_BACK
        self.running.append(req)
        if self._preemption.enabled:
            # A blocked request may preempt it.
            self._batch_is_full = False

    def _retract_one(self) -> bool:
        """Retract one running request; False if none can be retracted before the next results."""
        able = [req for req in self.running if not self._awaits_first(req)]
        if not able:
            return False
        self._retract_running(retract_order(able, self._rules.rank)[0])
        return True

    def _awaits_first(self, req: Req) -> bool:
        """Whether ``req`` is a session's turn with its prefill in flight and its state advanced.

        To resume without that result, the turn would have to recompute the prompt's last token from
        the state before it, which no longer exists.
        """
        batch = self.in_flight
        if batch is None or batch.forward.mode != "extend" or req.session is None:
            return False
        return self._pools.has_states and any(req.kv is record for record in batch.records)

    def _retract_running(self, req: Req) -> None:
        self.running = [other for other in self.running if other is not req]
        self._retract(req)

    def _retract(self, req: Req) -> None:
        """Return a request to the queue; its outputs are kept and will be prefilled again."""
        self._release.retract(req)
        req.is_retracted = True
        req.passed |= Passed.RETRACTED
        self._enqueue(req)
        self._batch_is_full = False
        self._counters.retracts += 1
        self.sessions.note_retract(req)

    def _prefetch(self, req: Req) -> None:
        """Start fetching the missing prefix from storage, except for a session's turn."""
        storage_tier = self._pools.storage_tier
        if storage_tier is not None and req.session is None:
            req.init_next_round_input()
            storage_tier.prefetch_from_storage(req.arrival, req.matchable_key())

    def _enqueue(self, req: Req) -> None:
        self._rules.entered(req)
        req.began_load_back = False
        self.waiting_queue.append(req)
        if self._preemption.enabled:
            # It may preempt a running request.
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

    def _drop_late_token(self, req: Req) -> None:
        """Count a result for a request that was released since the batch was formed.

        There is nothing to free: the step's KV position was freed with all the others.
        """
        counters = self._counters
        counters.late_tokens += 1
        if req.finished_reason is not None and req.finished_reason.kind is not FinishKind.ABORT:
            counters.surplus_steps += 1

    def _commit_launched(self, req: Req) -> None:
        """Commit all decode steps launched for ``req``, which is ending, including a surplus step.

        The surplus step was given the request's last token, so KV and state cover the whole text
        and the tree may take both.  A verify step is not committed: it has not changed the state
        and never will.
        """
        if self.in_flight is not None and self.in_flight.forward.mode == "decode":
            req.kv.kv_committed_len = req.kv.kv_allocated_len

    def _abort(self, req: Req, outcome: StepOutcome) -> None:
        """Abort ``req`` at any stage; it holds nothing afterwards."""
        for admitted in self._abort_waiting([req], outcome):
            self._abort_admitted(admitted, outcome)

    def _abort_waiting(self, leaving: Sequence[Req], outcome: StepOutcome) -> list[Req]:
        """Abort the waiting requests of ``leaving`` in one pass over the queue; return the rest."""
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
        # A decoding request's KV is complete, so the tree may keep it for later requests.
        self._counters.requests_aborted += 1
        self._release.release(req, is_insert=stage == "decode")
        self.sessions.abort_req(req, stage)
        self._batch_is_full = False
        req.finished_reason = req.to_abort
        outcome.aborted.append(req)


def _store_logprobs(
    logprobs: Mapping[int, TokenLogprobs], batch: ScheduleBatch, tokens: Sequence[Sequence[int]]
) -> None:
    """Store the logprobs of the ``tokens`` that the requests of ``batch`` get."""
    row = 0
    for place, (req, record) in enumerate(zip(batch.reqs, batch.records, strict=True)):
        gets_tokens = req.kv is record and req is not batch.chunked_req
        if gets_tokens and req.logprobs is not None:
            req.logprobs += [logprobs[row + n] for n in range(len(tokens[place]))]
        row += 1 if batch.drafts is None else 1 + len(batch.drafts[place])


def _seq_lens(batch: ScheduleBatch, tokens: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return the lengths of the requests after ``batch``; in chains, only accepted tokens count."""
    if batch.drafts is None:
        return batch.forward.seq_lens
    pairs = zip(batch.forward.prefix_lens, tokens, strict=True)
    return [prefix_len + len(new) for prefix_len, new in pairs]
