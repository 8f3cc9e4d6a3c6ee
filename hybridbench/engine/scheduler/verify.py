"""Plan and settle verify steps, which run each request's last token and its draft tokens.

A draft token is accepted if plain decoding would choose the same token there.  Sampled tokens
depend only on logits, seed and position, so this holds at any temperature, and the outputs equal
those of the engine without speculation.

A verify step leaves the state slots unchanged and keeps the states after each token in separate
buffers, so with overlapped scheduling it can still be undone while its results are pending.  How
many tokens it yields is unknown when the next step is formed.  KV is therefore allocated for the
maximum, and the request keeps it: ``kv_allocated_len`` runs ahead of ``kv_committed_len``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.lineage import Passed
from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.batch_builder import BatchBuilder
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.engine.scheduler.release import RequestRelease
from hybridbench.engine.scheduler.schedule_batch import ChainsToCome, ScheduleBatch
from hybridbench.engine.speculative.drafter import Drafter


class DraftVerifier:
    """Proposes chains before a step, and determines afterwards what was accepted."""

    def __init__(
        self,
        drafter: Drafter | None,
        num_draft_tokens: int,
        builder: BatchBuilder,
        pools: Pools,
        release: RequestRelease,
        counters: EngineCounters,
    ) -> None:
        """Limit chains, a request's last token and its drafts, to ``num_draft_tokens``.

        Without a ``drafter`` a chain is only the last token.
        """
        self._drafter = drafter
        self._most_guesses = 0 if drafter is None else num_draft_tokens - 1
        self._builder = builder
        self._pools = pools
        self._release = release
        self._counters = counters

    # Without overlap: results arrive before the next step is formed.

    def batch(self, running: Sequence[Req]) -> ScheduleBatch | None:
        """Return a batch of one chain per request; None if there are no drafts or none fit."""
        drafts = self._propose(running)
        forward = self._builder.verify(running, drafts) if any(drafts) else None
        if forward is None:
            return None
        self._counters.verify_steps += 1
        return ScheduleBatch.of(list(running), forward, drafts=drafts)

    def free_tail(self, req: Req) -> None:
        """Free the pages of ``req`` that hold only rejected draft tokens, if any."""
        kv = req.kv
        if ceil_align(kv.kv_committed_len, self._pools.page_size) < kv.kv_allocated_len:
            self._counters.draft_tails += 1
        self._release.free_draft_tail(req)

    # With overlap: allocate room first; build the chains once the previous results are in.

    def fits(self, running: Sequence[Req], in_flight: ScheduleBatch | None) -> bool:
        """Evict if necessary; return whether each of ``running`` has room for a plain decode."""
        return self._pools.make_kv_room(self._missing(running, _ends(running, in_flight, 0)))

    def reserve(
        self, running: Sequence[Req], in_flight: ScheduleBatch | None
    ) -> ChainsToCome | None:
        """Allocate KV for one chain per request, with fewer drafts if room is short.

        None, with nothing taken, if even chains without drafts do not fit.
        """
        guesses = self._most_guesses
        ends = _ends(running, in_flight, guesses)
        while guesses and self._missing(running, ends) > self._pools.kv_room():
            guesses -= 1
            ends = _ends(running, in_flight, guesses)
        if not self._builder.reserve(running, ends):
            return None
        return ChainsToCome(list(running), guesses)

    def lay_out(self, planned: ChainsToCome, news: Mapping[int, Sequence[int]]) -> ScheduleBatch:
        """Build the planned batch, now that the previous results are in.

        Args:
            planned: the result of ``reserve``.
            news: tokens that the requests are about to get, by the id of their records.
        """
        begins, drafts, last_tokens = [], [], []
        for req in planned.reqs:
            outputs = [*req.output_ids, *news.get(id(req.kv), ())]
            begin = len(req.origin_input_ids) + len(outputs) - 1
            room = req.kv.kv_allocated_len - begin - 1
            begins.append(begin)
            drafts.append(self._guesses(req, outputs, min(planned.guesses, room)))
            last_tokens.append(outputs[-1])
        forward = self._builder.chains(planned.reqs, begins, last_tokens, drafts)
        self._counters.verify_steps += any(map(bool, drafts))
        return ScheduleBatch.of(planned.reqs, forward, drafts=drafts)

    # Results.

    def accept(self, batch: ScheduleBatch, token_ids: Sequence[int]) -> list[list[int]]:
        """Return the tokens that each request of a verified batch gets, and update their states.

        Each request gets at least one token, except one released since the batch was formed: it
        gets none, since its state slot may belong to another request.

        Args:
            batch: the verified batch, with its ``drafts``.
            token_ids: the tokens that the model chose after each token of the batch.
        """
        assert batch.drafts is not None, "only a batch with drafts is verified"
        borders = [0]
        for guesses in batch.drafts:
            borders.append(borders[-1] + len(guesses) + 1)
        taken = [
            _right(req, guesses, token_ids[begin:end]) if req.kv is record else []
            for req, record, guesses, (begin, end) in zip(
                batch.reqs, batch.records, batch.drafts, pairwise(borders), strict=True
            )
        ]
        self._note(batch, batch.drafts, taken)
        self._update_states(batch, taken)
        return taken

    def _propose(self, running: Sequence[Req]) -> list[list[int]]:
        """Propose draft tokens for each of ``running``; fewer if the pools lack room."""
        drafts = [self._guesses(req, req.output_ids, self._most_guesses) for req in running]
        longest = max(map(len, drafts), default=0)
        # There is already room for one token each, so this ends at zero drafts at the latest.
        while longest and self._missing(running, _with(running, drafts)) > self._pools.kv_room():
            longest -= 1
            drafts = [guesses[:longest] for guesses in drafts]
        return drafts

    def _guesses(self, req: Req, outputs: Sequence[int], most: int) -> list[int]:
        """Propose no more than the request may still produce: admission promised only that room."""
        most = min(most, req.sampling_params.max_new_tokens - len(outputs) - 1)
        is_over = req.end_with(outputs[-1], len(outputs)) is not None
        if self._drafter is None or most < 1 or is_over:
            return []
        return self._drafter.propose(req.origin_input_ids, outputs, most)[:most]

    def _missing(self, running: Sequence[Req], ends: Sequence[int]) -> int:
        """Return the KV tokens, in whole pages, that extending ``running`` to ``ends`` takes."""
        page_size = self._pools.page_size
        return sum(
            max(0, ceil_align(end, page_size) - ceil_align(req.kv.kv_allocated_len, page_size))
            for req, end in zip(running, ends, strict=True)
        )

    def _update_states(self, batch: ScheduleBatch, taken: Sequence[Sequence[int]]) -> None:
        """Copy the state after each request's last accepted input into its slot."""
        if not self._pools.has_states:
            return
        # The state of a released request goes to the dump slot.
        rows = zip(batch.reqs, taken, strict=True)
        self._pools.mamba_pool.update_mamba_state_after_verify(
            [req.kv.state_slot if tokens else 0 for req, tokens in rows],
            [max(0, len(tokens) - 1) for tokens in taken],
        )

    def _note(
        self,
        batch: ScheduleBatch,
        drafts: Sequence[Sequence[int]],
        taken: Sequence[Sequence[int]],
    ) -> None:
        for req, guesses, tokens in zip(batch.reqs, drafts, taken, strict=True):
            if tokens:
                self._counters.drafts_proposed += len(guesses)
                # The last token taken is the model's own.
                self._counters.drafts_accepted += len(tokens) - 1
                if len(tokens) > 1:
                    req.passed |= Passed.GUESSED


def _right(req: Req, guesses: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """Return the model's tokens up to the first disagreement or the end of the request."""
    count = len(req.output_ids)
    for place, token_id in enumerate(chosen):
        is_last = req.end_with(token_id, count + place + 1) is not None
        if is_last or place == len(guesses) or guesses[place] != token_id:
            return list(chosen[: place + 1])
    raise AssertionError("a chain has one more token than it has guesses")


def _with(running: Sequence[Req], drafts: Sequence[Sequence[int]]) -> list[int]:
    """Return the requests' lengths after chains with these draft tokens."""
    pairs = zip(running, drafts, strict=True)
    return [req.kv.kv_allocated_len + 1 + len(guesses) for req, guesses in pairs]


def _ends(running: Sequence[Req], in_flight: ScheduleBatch | None, guesses: int) -> list[int]:
    """Return the lengths after chains with this many drafts if all tokens in flight are accepted.

    Drafts never extend a request past its maximum number of output tokens.
    """
    reached: dict[int, int] = {}
    if in_flight is not None:
        lens = zip(in_flight.records, in_flight.forward.seq_lens, strict=True)
        reached = {id(record): length for record, length in lens}
    return [
        min(
            reached.get(id(req.kv), req.kv.kv_committed_len) + 1 + guesses,
            len(req.origin_input_ids) + req.sampling_params.max_new_tokens,
        )
        for req in running
    ]
