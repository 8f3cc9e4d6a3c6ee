"""The loop's decisions: what runs next, and who may join it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybridbench.engine.cache.base import MatchPrefixParams
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.config import EngineConfig
from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.req import FinishKind, FinishReason, Req
from hybridbench.engine.scheduler.batch import (
    BatchBuilder,
    ChainsToCome,
    ScheduleBatch,
    resolve_future_token_ids,
)
from hybridbench.engine.scheduler.decode import DecodeRoom, NewTokenRatioTracker
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.policy import SchedulePolicy
from hybridbench.engine.scheduler.pools import Pools, no_room_message
from hybridbench.engine.scheduler.prefill import AddReqResult, PrefillAdder, PrefillLimits
from hybridbench.engine.scheduler.request_flow import RequestFlow
from hybridbench.engine.scheduler.tracking import StateTracker, TrackLimits
from hybridbench.engine.scheduler.verify import DraftVerifier
from hybridbench.engine.speculative.drafter import Drafter

# In the place of the last token of a request that got none.
NO_TOKEN = 0


class Scheduler(RequestFlow):
    """Decides which requests run next, and takes what their steps gave.

    One step is: ``settle_aborts``, ``schedule``, ``lay_out``, the model, ``accept``, ``settle``.

    With overlap ``accept``, ``lay_out`` and ``settle`` get the batch of the step before, and
    ``launched`` is told of this step's.  What runs on a device runs in order, so that a slot may be
    given back, and a state copied, as soon as the last step that uses it was launched: nobody waits
    for its result.
    """

    def __init__(
        self,
        config: EngineConfig,
        pools: Pools,
        counters: EngineCounters,
        drafter: Drafter | None = None,
    ) -> None:
        """With a ``drafter``, decode steps verify chains of ``speculative_num_draft_tokens``."""
        super().__init__(config, pools, counters)
        self._config = config
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

    def schedule(self, outcome: StepOutcome) -> ScheduleBatch | ChainsToCome | None:
        """The next step's batch: a prefill if there is one, or else one token for all; or None."""
        if self.is_paused:
            return None
        batch = self._next_prefill(outcome)
        return batch if batch is not None else self._next_decode(outcome)

    def lay_out(
        self,
        planned: ScheduleBatch | ChainsToCome,
        previous: ScheduleBatch | None = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> ScheduleBatch:
        """``planned`` with what the step before it gave: ``tokens``, by request of ``previous``."""
        if isinstance(planned, ChainsToCome):
            records = () if previous is None else previous.records
            news = zip(records, tokens, strict=True)
            return self._verifier.lay_out(planned, {id(record): new for record, new in news})
        if previous is None:
            return planned
        # Nobody waits for the token of a request that has let go meanwhile.
        last = [new[-1] if new else NO_TOKEN for new in tokens]
        return replace(planned, forward=resolve_future_token_ids(planned.forward, last))

    def launched(self, batch: ScheduleBatch | None) -> None:
        """With overlap only: ``batch`` is on its way, and its results come with the next step.

        What a prefill computes is known without them, so the tree gets the prompts now: by the time
        of the results the next step may have moved the state on.  None says that nothing runs.
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

    def accept(self, batch: ScheduleBatch, token_ids: Sequence[int]) -> list[list[int]]:
        """What each request of a batch that ran gets of its tokens: with drafts those that are
        right, whose states become the requests' here.

        The next step reads those states, so that this comes before it, settled or not.

        Args:
            batch: what ran in this step, or with overlap in the step before.
            token_ids: one per request of the batch, with drafts one for each of its new tokens.
        """
        if batch.drafts is None:
            return [[token_id] for token_id in token_ids]
        tokens = self._verifier.accept(batch, token_ids)
        self._tracker.complete_verified(batch, list(map(len, tokens)))
        return tokens

    def settle(
        self, batch: ScheduleBatch, tokens: Sequence[Sequence[int]], outcome: StepOutcome
    ) -> None:
        """Take the tokens of a batch that ran: commit its KV, finish what is done.

        Args:
            batch: what ran in this step, or with overlap in the step before.
            tokens: what ``accept`` gave; that of ``chunked_req`` is ignored.
            outcome: filled with who got a token and who is done.
        """
        is_prefill = batch.forward.mode == "extend"
        to_share = is_prefill and not self._config.enable_overlap_schedule
        if to_share or not is_prefill:
            self._tracker.complete(batch)
        chunked_req = batch.chunked_req
        rows = zip(batch.reqs, batch.records, _seq_lens(batch, tokens), tokens, strict=True)
        for req, record, seq_len, new in rows:
            if req is chunked_req:
                if to_share:
                    record.kv_committed_len = seq_len
                    self._stash_chunk(req)
                continue
            if req.kv is not record:
                self._drop_late_token(req, batch)
                continue
            record.kv_committed_len = seq_len
            self._take(req, new, outcome)
            if req.finished_reason is not None:
                self._finish(req, outcome)
            elif to_share:
                # From here on others may reuse the prompt.
                self._pools.cache_unfinished_req(req)
                self._join_running(req)
        self._end_settling(outcome)

    def _take(self, req: Req, tokens: Sequence[int], outcome: StepOutcome) -> None:
        """``req`` gets what a step gave; without overlap, room for guesses goes back at once."""
        for token_id in tokens:
            req.append_token(token_id)
            outcome.produced.append(req)
        if self._drafts and not self._config.enable_overlap_schedule:
            self._verifier.free_tail(req)

    def _end_settling(self, outcome: StepOutcome) -> None:
        self._counters.output_tokens += len(outcome.produced)
        if outcome.finished:
            self.running = [req for req in self.running if not req.finished]
            self._batch_is_full = False

    # Prefill.

    def _next_prefill(self, outcome: StepOutcome) -> ScheduleBatch | None:
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
        if adder.refused is not None:
            self._counters.refusals += 1

    def _admit_by_preemption(self, adder: PrefillAdder) -> AddReqResult:
        """Go on admitting where the queue was blocked, while somebody can be sent back for it."""
        # Not those who are sent back: they wait at least one step.
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
        """Send back who must go so that ``req`` fits; False if nobody can, or it would not do."""
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
        """End a request that was refused although nobody else holds anything.

        It would be refused for ever.  Requests that do not fit an empty engine are refused at
        submission, so this happens only when slots have been lost.  Before that, what idle sessions
        hold is taken from them, one session a step.
        """
        if self.running or self.chunked_req is not None or adder.sent_back:
            return
        if self.waiting_queue and self.sessions.evict():
            return
        req = adder.refused
        if req is None:
            return
        req.to_abort = FinishReason(FinishKind.ABORT, no_room_message(req, self._pools))
        self._abort(req, outcome)
        self._counters.abort_no_room += 1

    def _roll_back(self, admitted: Sequence[Req]) -> None:
        """An allocation failed although admission saw room: everybody waits again."""
        for req in admitted:
            if req is self.chunked_req:
                self.chunked_req = None
                self._retract(req)
            else:
                self._release.release(req, is_insert=False)
        self._counters.rollbacks += 1

    def _stash_chunk(self, req: Req) -> None:
        """Between chunks the tree gets what is computed, so that others may reuse it."""
        self._pools.cache_unfinished_req(req, chunked=True)
        self._counters.prefill_chunks += 1

    def _cached_prefix_len(self, req: Req) -> int:
        """How much of ``req`` the cache has now; takes nothing."""
        if req.session is not None and req.session.session_id in self._pools.sessions.slots:
            return self._pools.sessions.cached_len(req.session.session_id)
        req.init_next_round_input()
        key = RadixKey(req.matchable_ids())
        return len(self._pools.match_prefix(MatchPrefixParams(key=key)).device_indices)

    # Decode.

    def _next_decode(self, outcome: StepOutcome) -> ScheduleBatch | ChainsToCome | None:
        retracted = self._make_room_for_decode(outcome)
        batch = self._decode_batch()
        while batch is None and self.running and not self._awaits_last():
            # There was room, and still an allocation failed: one request less may do.
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
        """The next token of each running request, and with drafts perhaps more; None if there is
        nobody, or no room.
        """
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
        """Whether the next decode step is one whose states are kept apart until its results are in.

        Overlapped guesses are, since nobody knows yet how many are right.  So are the steps of a
        session's turn: pushed back meanwhile, it goes on from the token before.
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
        """Whether the only running request may be over already: its last result will say."""
        return len(self.running) == 1 and self.in_flight is not None

    def _make_room_for_decode(self, outcome: StepOutcome) -> bool:
        """Retract until the rest can go on; the last one, if even it cannot, is aborted.

        Before that idle sessions lose what they hold; retracted turns are idle then, too.
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
                f"the KV pool has no room for token {req.seqlen} of this request, "
                "which is the only one running",
            )
            self._abort(req, outcome)
            self._counters.abort_no_room += 1
        return retracted


def _seq_lens(batch: ScheduleBatch, tokens: Sequence[Sequence[int]]) -> Sequence[int]:
    """How long the requests of ``batch`` are after it; of chains what was right counts."""
    if batch.drafts is None:
        return batch.forward.seq_lens
    pairs = zip(batch.forward.prefix_lens, tokens, strict=True)
    return [prefix_len + len(new) for prefix_len, new in pairs]
