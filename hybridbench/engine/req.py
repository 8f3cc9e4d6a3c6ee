"""One request, the record of everything it holds, and the session that it may belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hybridbench.engine.cache.base import DecLockRefParams
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.lineage import MOST_WRITERS, Writers, joined
from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.next_token import TokenLogprobs
from hybridbench.engine.sampling_params import SamplingParams

# Number of leading prompt tokens that the hash of the payload replaces.
PAYLOAD_TOKENS = 4
_DIGEST_BYTES = 8 * PAYLOAD_TOKENS

NO_INDICES: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
NO_INDICES.setflags(write=False)


class FinishKind(StrEnum):
    """Why a request ended."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class FinishReason:
    """Why a request ended; ``message`` is one sentence for the client of an aborted request."""

    kind: FinishKind
    message: str = ""


@dataclass(slots=True)
class ReqKv:
    """Everything a request holds; it is moved, never copied field by field.

    Positions of the request's row, half-open, and who frees each range:

        [0, cache_protected_len)                  the tree; the request holds a lock on last_node
        [cache_protected_len, kv_committed_len)   the request; its KV is final
        [kv_committed_len, kv_allocated_len)      the request; written by the step in flight

    ``mamba_pool_idx`` is the request's own state slot; between a match and the admission decision,
    a request may hold one without a row.  With pages of several tokens, ``cache_protected_len`` is
    a multiple of the page size, and the request also owns the rest of the page in which
    ``kv_allocated_len`` ends.

    The window pool holds the request's own positions only from ``swa_evicted_seqlen`` on (0 without
    sliding windows); the full pool holds all of them.

    With track buffers ``mamba_ping_pong_track_buffer`` lists the slots for saved copies of the
    state (-1 for a slot not allocated), and ``mamba_last_track_seqlen`` is the length of the last
    complete copy, None if there is none.
    """

    req_pool_idx: int | None = None
    mamba_pool_idx: int | None = None
    last_node: TreeNode | None = None
    lock_receipt: DecLockRefParams | None = None  # last_node is locked for this request
    cache_protected_len: int = 0
    kv_committed_len: int = 0
    kv_allocated_len: int = 0
    swa_evicted_seqlen: int = 0
    mamba_ping_pong_track_buffer: list[int] | None = None
    mamba_next_track_idx: int = 0
    mamba_last_track_seqlen: int | None = None
    # The tree's KV positions of the matched prefix: the holder may read them but does not own them.
    prefix_indices: npt.NDArray[np.int64] = field(
        default_factory=lambda: NO_INDICES, repr=False, compare=False
    )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to free."""
        return (
            self.req_pool_idx is None
            and self.mamba_pool_idx is None
            and self.mamba_ping_pong_track_buffer is None
            and self.last_node is None
            and self.kv_allocated_len == 0
        )

    @property
    def is_locked(self) -> bool:
        """Whether ``last_node`` is locked for the holder of this record."""
        return self.lock_receipt is not None

    @property
    def row(self) -> int:
        """The row of an admitted request."""
        assert self.req_pool_idx is not None, "a request without a row is not admitted"
        return self.req_pool_idx

    @property
    def state_slot(self) -> int:
        """The state slot of an admitted request."""
        assert self.mamba_pool_idx is not None, "a request without a state slot is not admitted"
        return self.mamba_pool_idx

    @property
    def track_slots(self) -> list[int]:
        """The state slots of the track buffer; empty without one."""
        return [slot for slot in self.mamba_ping_pong_track_buffer or () if slot > 0]

    @property
    def state_slots_held(self) -> int:
        """State slots to free: the request's own and those of its buffer."""
        return (self.mamba_pool_idx is not None) + len(self.track_slots)

    @property
    def uncached_len(self) -> int:
        """KV positions that the request itself must free."""
        return self.kv_allocated_len - self.cache_protected_len

    def held_len(self, page_size: int) -> int:
        """``uncached_len`` in whole pages: the request also owns the rest of its last page."""
        return ceil_align(self.kv_allocated_len, page_size) - self.cache_protected_len

    def swa_held_len(self, page_size: int) -> int:
        """Tokens of the window pool that the request itself must free, in whole pages."""
        return ceil_align(self.kv_allocated_len, page_size) - self.swa_held_from

    @property
    def swa_held_from(self) -> int:
        """The first position whose KV in the window pool belongs to the request."""
        return max(self.cache_protected_len, self.swa_evicted_seqlen)


class Req:
    """One request: its tokens, its sampling parameters, and ``kv``, everything it holds."""

    __slots__ = (
        "arrival",
        "began_load_back",
        "cached_tokens",
        "extend_input_len",
        "extra_key",
        "fill_ids",
        "finished_reason",
        "is_retracted",
        "kv",
        "last_heard_s",
        "logprobs",
        "mamba_branching_seqlen",
        "origin_input_ids",
        "output_ids",
        "passed",
        "payload",
        "priority",
        "queued_s",
        "rid",
        "sampling_params",
        "session",
        "stop_token_ids",
        "submitted_s",
        "to_abort",
        "went_on_from",
    )

    def __init__(
        self,
        rid: str,
        origin_input_ids: list[int],
        sampling_params: SamplingParams,
        arrival: int = 0,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        """Create a waiting request.

        Args:
            rid: its id.
            origin_input_ids: the prompt; kept, not copied.
            sampling_params: how to choose tokens, and when to stop.
            arrival: sequence number in the order of submission.
            eos_token_ids: the model's tokens that end a request, unless it ignores them.
        """
        self.rid = rid
        self.origin_input_ids = origin_input_ids
        self.sampling_params = sampling_params
        self.arrival = arrival
        self.stop_token_ids: frozenset[int] = frozenset()
        if not sampling_params.ignore_eos:
            self.stop_token_ids = frozenset((*sampling_params.stop_token_ids, *eos_token_ids))
        self.output_ids: list[int] = []
        # One entry per output token; None unless the request asks for logprobs.
        self.logprobs: list[TokenLogprobs] | None = None
        if sampling_params.logprobs is not None:
            self.logprobs = []
        # The tokens that a prefill must cover: the prompt, and after a retract the outputs as well.
        self.fill_ids: list[int] = origin_input_ids
        self.extend_input_len = 0
        self.cached_tokens = 0  # reused at the first admission
        self.mamba_branching_seqlen: int | None = None
        self.finished_reason: FinishReason | None = None
        self.to_abort: FinishReason | None = None
        self.is_retracted = False
        # Whether it started a load from the host since it was last queued.
        self.began_load_back = False
        # The session of which this is a turn, until the turn ends; None without a session.
        self.session: Session | None = None
        # Requests with different keys share no prefix.
        self.extra_key: str | None = None
        self.payload = b""
        self.priority = 0
        # Times by the engine's clock: the submission, the last queueing, and the admission or last
        # token, whichever is later.
        self.submitted_s = 0.0
        self.queued_s = 0.0
        self.last_heard_s = 0.0
        self.passed = 0  # bits of ``Passed``
        self.went_on_from: Writers = ()  # the requests that computed what it reads
        self.kv = ReqKv()

    @property
    def seqlen(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.origin_input_ids) + len(self.output_ids)

    @property
    def remaining_new_tokens(self) -> int:
        """Output tokens the request may still produce."""
        return self.sampling_params.max_new_tokens - len(self.output_ids)

    @property
    def finished(self) -> bool:
        return self.finished_reason is not None

    @property
    def writers(self) -> Writers:
        """The requests that contributed to what it computes: itself, then those it builds on."""
        before = self.went_on_from
        if before and before[0][0] == self.arrival:
            before = before[1:]  # a session's turn that resumes after a retract
        return ((self.arrival, self.passed), *before[: MOST_WRITERS - 1])

    def goes_on_from(self, writers: Writers) -> None:
        """Record that this request reads what ``writers`` computed."""
        others = tuple(writer for writer in writers if writer[0] != self.arrival)
        self.went_on_from = joined(others, self.went_on_from)

    def attach_payload(self, payload: bytes, vocab_size: int) -> None:
        """Hold ``payload`` (such as image features) for the life of the request.

        Its hash replaces the first tokens of the prompt, so that only prompts with equal
        payloads share a prefix.  Source: SGLang's pad values; vLLM extends the block hash instead.
        """
        self.payload = payload
        digest = np.frombuffer(payload_digest(payload), dtype=np.uint64)
        taken = min(PAYLOAD_TOKENS, len(self.origin_input_ids))
        self.origin_input_ids[:taken] = (digest % np.uint64(vocab_size)).tolist()[:taken]

    def init_next_round_input(self) -> None:
        """Set ``fill_ids`` to what a prefill of this request must cover; call before matching."""
        if self.output_ids:
            self.fill_ids = self.origin_input_ids + self.output_ids

    def matchable_key(self) -> RadixKey:
        """The tokens that a match may cover: all but the last, which is computed for its logits.

        That last token is called the logit reserve.
        """
        return RadixKey(self.fill_ids[: len(self.fill_ids) - 1], self.extra_key)

    def forget_match(self) -> None:
        """Drop what a match found: a waiting request must not keep nodes alive."""
        kv = self.kv
        kv.last_node = None
        kv.prefix_indices = NO_INDICES
        kv.cache_protected_len = 0
        self.mamba_branching_seqlen = None
        self.extend_input_len = 0

    def append_token(self, token_id: int) -> None:
        """Append the next output token and decide whether it was the last."""
        output_ids = self.output_ids
        output_ids.append(token_id)
        # ``end_with`` inlined: this runs for every token.
        if token_id in self.stop_token_ids:
            self.finished_reason = FinishReason(FinishKind.STOP)
        elif len(output_ids) >= self.sampling_params.max_new_tokens:
            self.finished_reason = FinishReason(FinishKind.LENGTH)

    def end_with(self, token_id: int, count: int) -> FinishKind | None:
        """How ``token_id``, as output token number ``count``, ends the request; None if not."""
        if token_id in self.stop_token_ids:
            return FinishKind.STOP
        return FinishKind.LENGTH if count >= self.sampling_params.max_new_tokens else None


class Session:
    """One conversation: its tokens, the current turn, and whether to close it after that turn.

    ``tokens`` are the prompts and answers of all finished turns; an aborted or rejected turn
    leaves no trace in them.
    """

    __slots__ = (
        "close_on_finish",
        "last_active_s",
        "req",
        "session_id",
        "timeout_s",
        "tokens",
    )

    def __init__(self, session_id: str, timeout_s: float | None, now_s: float) -> None:
        """Open a session without a turn; ``timeout_s`` None disables the time-out."""
        self.session_id = session_id
        self.timeout_s = timeout_s
        self.last_active_s = now_s
        self.tokens: list[int] = []
        self.req: Req | None = None
        self.close_on_finish = False

    @property
    def is_inflight(self) -> bool:
        """Whether a turn is waiting or running."""
        return self.req is not None

    def is_timed_out(self, now_s: float) -> bool:
        """Whether it was idle for longer than ``timeout_s``; never while a turn is in progress."""
        if self.timeout_s is None or self.is_inflight:
            return False
        return now_s - self.last_active_s > self.timeout_s

    def expiry_s(self, now_s: float) -> float:
        """The earliest time at which it may expire; a turn in progress postpones it."""
        assert self.timeout_s is not None, f"session {self.session_id} never times out"
        return (now_s if self.is_inflight else self.last_active_s) + self.timeout_s

    def begin_req(self, req: Req, now_s: float) -> None:
        """Make ``req`` the current turn; its prompt begins with ``tokens``."""
        assert self.req is None, f"session {self.session_id} has a turn under way"
        self.req = req
        req.session = self
        self.last_active_s = now_s

    def finish_req(self, req: Req, now_s: float) -> None:
        """End an answered turn: its prompt and its answer become the history."""
        self.tokens = [*req.origin_input_ids, *req.output_ids]
        self._end_req(req, now_s)

    def abort_req(self, req: Req, now_s: float) -> None:
        """End a turn without an answer: the history stays as it was."""
        self._end_req(req, now_s)

    def _end_req(self, req: Req, now_s: float) -> None:
        # Both references: otherwise the cycle would wait for the garbage collector.
        self.req = None
        req.session = None
        self.last_active_s = now_s


def payload_digest(payload: bytes) -> bytes:
    """The hash of ``payload``, eight bytes for each token that it replaces."""
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()
