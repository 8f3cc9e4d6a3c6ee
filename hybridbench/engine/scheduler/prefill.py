"""Admission: decide which waiting requests join a prefill step, and how many tokens of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hybridbench.engine.cache.base import MatchPrefixParams
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.engine.scheduler.release import RequestRelease

# Admission counts at most this much output per request, so that one large max_new_tokens does not
# block it.  Source: SGLang's clip.
CLIP_MAX_NEW_TOKENS = 4096


class AddReqResult(Enum):
    """Whether the admission loop continues."""

    CONTINUE = "continue"
    NO_TOKEN = "no_token"  # noqa: S105 - the pools cannot hold it, or not yet
    OTHER = "other"  # this step has computed enough


@dataclass(frozen=True)
class PrefillLimits:
    """The limits of one prefill step; with ``rem_chunk_tokens`` None, prompts are not chunked.

    ``decode_tokens`` is what a running request may take in one decode step, including draft tokens.
    With ``cut_at_branching``, a prompt is cut where it diverges from the cached KV, because states
    are saved only at the end of a step.
    """

    rem_input_tokens: int
    rem_chunk_tokens: int | None
    cut_at_branching: bool
    decode_tokens: int = 1


class PrefillAdder:
    """Adds requests to one prefill step while the budgets last.

    Budgets: ``rem_total_tokens`` is KV room for prompts and expected outputs, ``rem_swa_tokens``
    room for chunks and windows, ``rem_mamba_slots`` state slots, ``rem_rows`` request rows, and
    ``rem_input_tokens`` and ``rem_chunk_tokens`` the work of this step.  SGLang has no budget for
    state slots and asserts when they run out.

    All tokens are counted in whole pages: a request's prefix is whole pages, so its new tokens
    begin a page, and no other request shares its last page.

    Matching precedes the decision, and a hit takes a state slot.  A request that is refused
    afterwards returns the slot through ``_return_unadmitted``.
    """

    def __init__(
        self,
        pools: Pools,
        release: RequestRelease,
        limits: PrefillLimits,
        running: Sequence[Req],
        new_token_ratio: float,
    ) -> None:
        self._pools = pools
        self._release = release
        self._limits = limits
        self._rem_input_tokens = limits.rem_input_tokens
        self._rem_chunk_tokens = limits.rem_chunk_tokens
        self._page_size = pools.page_size
        self._decode_tokens = limits.decode_tokens
        self._new_token_ratio = new_token_ratio
        # KV that running requests are still expected to fill, plus what this step has promised.
        self._kv_promised: float = sum(map(self.kv_expected, running))
        self._swa_promised = sum(map(self.swa_expected, running))
        self._slots_promised = 0
        self._rows_promised = 0
        self.can_run_list: list[Req] = []
        self.new_chunked_req: Req | None = None
        self.refused: Req | None = None
        self.sent_back = 0  # running requests retracted in this step
        self.awaiting = 0  # requests whose prefix is being loaded from the host or from storage

    def rem_total_tokens(self) -> float:
        """Return the KV tokens left for prompts and outputs of further requests."""
        return self._pools.full_room() - self._kv_promised

    def rem_swa_tokens(self) -> int:
        """Return the KV tokens left in the window pool for further requests."""
        return self._pools.swa_room() - self._swa_promised

    def rem_mamba_slots(self) -> int:
        """Return the state slots left for further requests."""
        return self._pools.mamba_room() - self._slots_promised

    def rem_rows(self) -> int:
        """Return the request rows left for further requests."""
        return self._pools.free_rows() - self._rows_promised

    def would_compute(self, req: Req, prefix_len: int) -> bool:
        """Whether this step's compute budget still has room for ``req``, ignoring the pools."""
        prompt_len = len(req.fill_ids) - prefix_len
        if self._rem_input_tokens <= 0 or self._rem_chunk_tokens == 0:
            return False
        if self._rem_chunk_tokens is None:
            return not self.can_run_list or self._in_pages(prompt_len) <= self._rem_input_tokens
        # Only one request can be between chunks.
        return prompt_len <= self._rem_chunk_tokens or self.new_chunked_req is None

    def kv_need(self, req: Req, prefix_len: int) -> int:
        """Return the KV tokens that ``req`` needs for the rest of its prompt and its outputs."""
        return self._kv_need(req, len(req.fill_ids) - prefix_len)

    def swa_need(self, req: Req, prefix_len: int) -> int:
        """Return the most window-pool tokens that ``req`` needs at once; 0 without a window pool.

        This is its window plus what a step adds.  Between two chunks the tree locks the window in
        whole nodes, which are at most a chunk longer.
        """
        prompt_len = len(req.fill_ids) - prefix_len
        all_of_it = prompt_len + min(req.remaining_new_tokens, CLIP_MAX_NEW_TOKENS)
        chunk = self._limits.rem_chunk_tokens
        at_once = prompt_len if chunk is None else min(prompt_len, 2 * chunk)
        return self._swa_in_pages(min(all_of_it, at_once + self._swa_peak))

    def forget_running(self, req: Req) -> None:
        """Release the room kept for ``req``, which is about to leave the running batch."""
        self._kv_promised -= self.kv_expected(req)
        self._swa_promised -= self.swa_expected(req)
        self.sent_back += 1

    def add_chunked_req(self, req: Req) -> bool:
        """Add the next chunk of a partly computed request; False if it does not fit.

        Admission promised room for its whole prompt, so it fits unless slots were lost or an
        allocation failed; then the caller must retract it.
        """
        start = req.kv.kv_committed_len
        extend_input_len = self._chunk_len(len(req.fill_ids) - start)
        if self._pools.kv_room() < self._in_pages(extend_input_len):
            return False
        self._add(req, extend_input_len, len(req.fill_ids) - start)
        return True

    def admit_from(self, waiting_queue: Sequence[Req]) -> AddReqResult:
        """Match and add from the front of the queue until one is refused or the queue ends.

        The group reserves state slots for the matches of this loop and always returns unused ones.
        """
        result = AddReqResult.CONTINUE
        most = min(len(waiting_queue), self.rem_rows())
        with self._pools.state_slot_group(most):
            for req in waiting_queue:
                if self.rem_rows() < self._pools.rows_wanted(req):
                    return AddReqResult.NO_TOKEN
                result = self._match_and_add(req)
                if result is not AddReqResult.CONTINUE:
                    break
        return result

    def add_one_req(self, req: Req) -> AddReqResult:
        """Add a matched request if every budget allows it; otherwise leave it unchanged.

        CONTINUE means that the request was added *and* there is room for more.  With the other
        results it may have been added as well (see ``can_run_list``).
        """
        if self._rem_input_tokens <= 0 or self._rem_chunk_tokens == 0:
            return AddReqResult.OTHER
        start = len(req.kv.prefix_indices)
        prompt_len = len(req.fill_ids) - start
        # The first request passes at any length; otherwise a long prompt would never run.
        if (
            self.can_run_list
            and self._rem_chunk_tokens is None
            and self._in_pages(prompt_len) > self._rem_input_tokens
        ):
            return AddReqResult.OTHER
        locked = self._lock(req)
        if not self._has_room(req, prompt_len):
            self._unlock(req, locked)
            return AddReqResult.NO_TOKEN
        extend_input_len = self._chunk_len(self._to_branching(req, start, prompt_len))
        if extend_input_len < prompt_len and self.new_chunked_req is not None:
            # Only one request can be between chunks.
            self._unlock(req, locked)
            return AddReqResult.OTHER
        self._slots_promised += self._pools.state_slots_wanted(req)
        self._rows_promised += self._pools.rows_wanted(req)
        self._add(req, extend_input_len, prompt_len)
        return self._budget_state()

    def _match_and_add(self, req: Req) -> AddReqResult:
        if self._awaits_prefetch(req):
            self.awaiting += 1
            return AddReqResult.CONTINUE
        req.init_next_round_input()
        result = self._pools.match_prefix(
            MatchPrefixParams(key=req.matchable_key(), cow_mamba=True, req=req)
        )
        req.kv.prefix_indices = result.device_indices
        if not req.kv.is_locked:
            # A session's record already has its locked node, and the request its writers.
            req.kv.last_node = result.last_device_node
            req.went_on_from = result.last_device_node.writers
        req.mamba_branching_seqlen = result.mamba_branching_seqlen
        if result.host_hit_length and self._awaits_load_back(req, result.last_host_node):
            self._put_back(req)
            self.awaiting += 1
            return AddReqResult.CONTINUE
        added = self.add_one_req(req)
        # A chunked request is added with a result other than CONTINUE, so check the list.
        if not (self.can_run_list and self.can_run_list[-1] is req):
            self.refused = req
            self._put_back(req)
        return added

    def _awaits_prefetch(self, req: Req) -> bool:
        """Whether more of the prefix of ``req`` is being fetched from storage to the host."""
        storage_tier = self._pools.storage_tier
        return storage_tier is not None and not storage_tier.check_prefetch_progress(req.arrival)

    def _awaits_load_back(self, req: Req, last_host_node: TreeNode) -> bool:
        """Whether more of the prefix of ``req`` is being loaded from the host.

        A request starts at most one load before it is admitted, and waits for the load to end.  If
        the load fails, or the loaded KV is evicted again, the request computes those tokens.
        """
        host_tier = self._pools.host_tier
        if host_tier is None:
            return False
        if req.began_load_back:
            return host_tier.is_loading(last_host_node)
        locked = self._lock(req)
        has_room = self._has_room(req, len(req.fill_ids) - len(req.kv.prefix_indices))
        if self._pools.has_states:
            # The load takes one slot in addition to the request's.
            has_room &= self._pools.state_slots_wanted(req) < self.rem_mamba_slots()
        self._unlock(req, locked)
        if not has_room:
            return False
        if host_tier.is_loading(last_host_node):
            return True
        req.began_load_back = host_tier.load_back(last_host_node)
        return req.began_load_back

    def _put_back(self, req: Req) -> None:
        """Release what ``req`` holds, since it is not admitted in this step."""
        # A session's turn frees nothing here, but returns its record to the session.
        if not self._pools.sessions.take_back(req):
            self._return_unadmitted(req)
        req.forget_match()

    def _return_unadmitted(self, req: Req) -> None:
        """Free the state slot that matching took for a request that is not admitted.

        A waiting request must hold nothing between steps.  Without this call the slot would be in
        no free list, tree node or running request (sglang#21404).
        """
        self._release.return_mamba_slot(req)

    def _has_room(self, req: Req, prompt_len: int) -> bool:
        """Whether all pools have room; call after locking, which makes nodes unevictable."""
        return (
            self._kv_need(req, prompt_len) < self.rem_total_tokens()
            and self.swa_need(req, len(req.fill_ids) - prompt_len) <= self.rem_swa_tokens()
            and self._pools.state_slots_wanted(req) <= self.rem_mamba_slots()
            and self._pools.rows_wanted(req) <= self.rem_rows()
        )

    def _to_branching(self, req: Req, start: int, prompt_len: int) -> int:
        """Return how much of the prompt to compute, cut where it diverges from the cached KV.

        The cut gives the tree a state there.  It makes the request a chunked one, so there is no
        cut while another request is between chunks.
        """
        branching = req.mamba_branching_seqlen
        can_chunk = self._rem_chunk_tokens is not None and self.new_chunked_req is None
        if not self._limits.cut_at_branching or branching is None or not can_chunk:
            return prompt_len
        return min(branching - start, prompt_len) if branching > start else prompt_len

    def _chunk_len(self, extend_len: int) -> int:
        """Return how much of ``extend_len`` this step computes.

        Cuts are at page borders, because the chunk budget starts as whole pages and is charged in
        whole pages.
        """
        if self._rem_chunk_tokens is None:
            return extend_len
        return min(extend_len, self._rem_chunk_tokens)

    def _kv_need(self, req: Req, prompt_len: int) -> int:
        """Return the KV tokens, in new pages, for the rest of a prompt and for its outputs.

        A prefix ends on a page border, except a session's, which owns the rest of its last page.
        """
        start = len(req.fill_ids) - prompt_len
        end = len(req.fill_ids) + min(req.remaining_new_tokens, CLIP_MAX_NEW_TOKENS)
        return self._in_pages(end) - self._in_pages(start)

    def kv_expected(self, req: Req) -> float:
        """Return the KV tokens that a running request is expected to take beyond its last page.

        With a ratio of 1 it never takes more.
        """
        tokens = min(req.remaining_new_tokens, CLIP_MAX_NEW_TOKENS) * self._new_token_ratio
        if self._decode_tokens > 1:
            # The next step takes room for its draft tokens at once, however few are accepted.
            tokens = max(tokens, min(req.remaining_new_tokens, self._decode_tokens))
        if self._page_size == 1:
            return tokens
        rest_of_page = -req.kv.kv_allocated_len % self._page_size
        return self._in_pages(max(0, math.ceil(tokens) - rest_of_page))

    def swa_expected(self, req: Req) -> int:
        """Return the window-pool tokens that a running request may still take on top of its own."""
        held = req.kv.swa_held_len(self._page_size)
        tokens = min(req.remaining_new_tokens, self._swa_peak - held)
        return self._swa_in_pages(max(0, tokens))

    @property
    def _swa_peak(self) -> int:
        """The window, plus one step and a partial page at either end."""
        return self._pools.sliding_window_size + self._decode_tokens + 2 * self._page_size

    def _swa_in_pages(self, tokens: int) -> int:
        return 0 if self._pools.swa_allocator is None else self._in_pages(tokens)

    def _in_pages(self, tokens: int) -> int:
        return ceil_align(tokens, self._page_size)

    def _add(self, req: Req, extend_input_len: int, prompt_len: int) -> None:
        """Promise the whole prompt and its outputs; charge this step for what it computes."""
        req.extend_input_len = extend_input_len
        if extend_input_len < prompt_len:
            self.new_chunked_req = req
        self._kv_promised += self._kv_need(req, prompt_len)
        self._swa_promised += self.swa_need(req, len(req.fill_ids) - prompt_len)
        charged = self._in_pages(extend_input_len)
        self._rem_input_tokens -= charged
        if self._rem_chunk_tokens is not None:
            self._rem_chunk_tokens -= charged
        self.can_run_list.append(req)

    def _budget_state(self) -> AddReqResult:
        # Rows are not checked: the next request may already have one.
        if self.rem_total_tokens() <= 0 or min(self.rem_mamba_slots(), self.rem_swa_tokens()) < 0:
            return AddReqResult.NO_TOKEN
        if self._rem_input_tokens <= 0 or self._rem_chunk_tokens == 0:
            return AddReqResult.OTHER
        return AddReqResult.CONTINUE

    def _lock(self, req: Req) -> bool:
        """Lock the matched node; False if it is already locked, as in a session's record."""
        kv = req.kv
        if kv.is_locked or kv.last_node is None:
            return False
        kv.lock_receipt = self._pools.tree_cache.inc_lock_ref(kv.last_node).to_dec_params()
        return True

    def _unlock(self, req: Req, locked: bool) -> None:
        """Undo ``_lock``, given its result ``locked``."""
        if locked and req.kv.last_node is not None:
            self._pools.tree_cache.dec_lock_ref(req.kv.last_node, req.kv.lock_receipt)
            req.kv.lock_receipt = None
