"""Speculative decoding: guesses that fit into the pools, and what the model makes of them.

A guess is right if it is the very token that plain decoding would choose at its place.  Drawn
tokens depend on logits, seed and position alone, so this holds with temperature as without, and the
outputs are those of the engine without speculation.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.batch import ScheduleBatch
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.engine.scheduler.release import RequestRelease
from hybridbench.engine.speculative.drafter import Drafter


class DraftVerifier:
    """Proposes chains before a step, and accepts what was right of them after it."""

    def __init__(
        self,
        drafter: Drafter,
        num_draft_tokens: int,
        pools: Pools,
        release: RequestRelease,
        counters: EngineCounters,
    ) -> None:
        """``num_draft_tokens`` is the longest chain: the last token of a request and guesses."""
        self._drafter = drafter
        self._most_guesses = num_draft_tokens - 1
        self._pools = pools
        self._release = release
        self._counters = counters

    def propose(self, running: Sequence[Req]) -> list[list[int]]:
        """Guesses for each of ``running``; fewer where the pools have no room for more."""
        drafts = [self._guesses(req) for req in running]
        longest = max(map(len, drafts), default=0)
        # Room for one token of each is there already, so this ends with no guesses at the latest.
        while longest and self._kv_needed(running, drafts) > self._pools.kv_room():
            longest -= 1
            drafts = [guesses[:longest] for guesses in drafts]
        return drafts

    def accept(self, batch: ScheduleBatch, token_ids: Sequence[int]) -> list[int]:
        """Take the tokens of a verified batch; how many each of its requests got, 1 or more.

        KV of wrong guesses is given back, states go back to the last right token.  Then each
        request is as if it had decoded that far; one that has finished still holds everything.

        Args:
            batch: what was verified; ``batch.drafts`` are the guesses.
            token_ids: the tokens that the model chose after each token of the batch.
        """
        assert batch.drafts is not None, "only a batch with drafts is verified"
        taken = []
        first = 0
        for req, guesses in zip(batch.reqs, batch.drafts, strict=True):
            chosen = token_ids[first : first + len(guesses) + 1]
            first += len(chosen)
            taken.append(_take(req, guesses, chosen))
            req.kv.kv_committed_len += taken[-1]
            self._note(guesses, taken[-1])
        self._roll_back_states(batch, taken)
        self._free_tails(batch.reqs)
        return taken

    def _guesses(self, req: Req) -> list[int]:
        """Never more than the request may still use, so that admission has promised their room."""
        most = min(self._most_guesses, req.remaining_new_tokens - 1)
        if most < 1:
            return []
        return self._drafter.propose(req.origin_input_ids, req.output_ids, most)[:most]

    def _kv_needed(self, running: Sequence[Req], drafts: Sequence[Sequence[int]]) -> int:
        """KV tokens of whole pages that the step takes."""
        page_size = self._pools.page_size
        return sum(
            ceil_align(req.kv_allocated_len + 1 + len(guesses), page_size)
            - ceil_align(req.kv_allocated_len, page_size)
            for req, guesses in zip(running, drafts, strict=True)
        )

    def _roll_back_states(self, batch: ScheduleBatch, taken: Sequence[int]) -> None:
        """The state of each request is the one after the last token that was fed to it rightly."""
        if not self._pools.has_states:
            return
        self._pools.mamba_pool.update_mamba_state_after_verify(
            [req.kv.state_slot for req in batch.reqs], [count - 1 for count in taken]
        )

    def _free_tails(self, reqs: Sequence[Req]) -> None:
        page_size = self._pools.page_size
        for req in reqs:
            if ceil_align(req.kv_committed_len, page_size) < req.kv_allocated_len:
                self._counters.draft_tails += 1
            self._release.free_draft_tail(req)

    def _note(self, guesses: Sequence[int], taken: int) -> None:
        counters = self._counters
        counters.drafts_proposed += len(guesses)
        # The last token that was taken is the model's own.
        counters.drafts_accepted += taken - 1


def _take(req: Req, guesses: Sequence[int], chosen: Sequence[int]) -> int:
    """Append what the model chose up to its first disagreement, or to the end of the request."""
    for place, token_id in enumerate(chosen):
        req.append_token(token_id)
        if req.finished or place == len(guesses) or guesses[place] != token_id:
            return place + 1
    raise AssertionError("a chain has one more token than it has guesses")
