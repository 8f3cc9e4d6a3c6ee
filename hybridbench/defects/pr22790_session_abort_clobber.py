"""sglang#22790: an aborted turn is saved as if it had one token.

What the session held was restored into the request, the abort cut the request's input to a single
token, and the turn was handled like a finished one: the session's slot took over the request's
record, with the length of that input.  From then on the slot recorded only one token of all that
it held.  Reported as sglang#22273, #21875 and #20476, with sessions that held "-1664" tokens.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.base import MatchResult
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.memory.owners import REQ, SESSION
from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.req import Req
from hybridbench.engine.sessions.session_slot import SessionSlot
from hybridbench.engine.sessions.streaming_session import StreamingSession

TRUTH = Truth()


def _give_up(self: StreamingSession, req: Req) -> None:
    """Handle the aborted turn like a finished one."""
    kv = req.kv
    if req.session is None or req.to_abort is None or kv.uncached_len == 0:
        self.inner.cache_finished_req(req, is_insert=False)
        return
    _set_finish_with_abort(req)
    held = kv.held_len(self.page_size)
    slot = SessionSlot(req.session.session_id)
    _save_from_req(slot, req)
    self._hand_over(slot.kv, REQ, SESSION)
    self.slots[slot.session_id] = slot
    TRUTH.add("aborts")
    TRUTH.add("tokens_lost", held - max(0, slot.kv.held_len(self.page_size)))


def _set_finish_with_abort(req: Req) -> None:
    """Cut the input to one token, enough to end a request whose answer is not needed."""
    req.origin_input_ids = req.origin_input_ids[:1]


def _save_from_req(slot: SessionSlot, req: Req) -> None:
    """Let the slot take over the record, with all of the input computed and allocated."""
    req.kv.kv_committed_len = req.kv.kv_allocated_len = len(req.origin_input_ids)
    slot.save_from_req(req)


def _resume(self: StreamingSession, slot: SessionSlot, req: Req, key: RadixKey) -> MatchResult:
    """Resume after the one token: nothing asserted that a session only grows."""
    kv = slot.kv
    prefix_len = min(kv.kv_committed_len, len(key))
    kv.cache_protected_len = min(kv.cache_protected_len, ceil_align(prefix_len, self.page_size))
    slot.restore_to_req(req)
    self._hand_over(kv, SESSION, REQ)
    self._note_tail(req.kv, prefix_len)
    self._free_tail(slot, prefix_len)
    req.kv.kv_committed_len = req.kv.kv_allocated_len = prefix_len
    self.session_events.restores += 1
    root = self.inner.root_node
    return MatchResult(self._row(req, 0, prefix_len), root, root, None, kv.cache_protected_len)


DEFECT = Defect(
    slug="session-abort-clobber",
    source="sglang#22790",
    symptom="Aborting a turn leaks all KV that its session holds itself, and the session's token "
    "count becomes negative.",
    profile="session-abort",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="kv",
        event="abort of a session's turn in prefill or decode",
        # The loss depends on what the session held, so no counter drives it; the count must agree.
        rate="all KV that the session holds itself, minus one token",
        harm="tokens_lost",
        counted="missing",
    ),
    patches=(
        Patch(StreamingSession, "_give_up", _give_up, fingerprint="51c2f9e94e1f"),
        Patch(StreamingSession, "_resume", _resume, fingerprint="78157ef1f29f"),
    ),
    harmed="Streaming sessions with interrupted turns: 32,000 tokens and more per abort.",
    cure="An abort frees all that the session holds, on one path, and keeps only its tokens.",
    # Enough KV to see the loss grow.
    overrides=(("pools.kv_tokens", "131072"),),
    truth=TRUTH,
    corrupts=True,
)
