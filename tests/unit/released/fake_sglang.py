"""A small fake of SGLang's scheduler, with the interfaces of each generation of releases.

It has everything the adapter calls, with the names and types of the releases.  Its behaviour is as
simple as possible: a prompt is computed in one step, and an answer is one node of the tree.
``losses`` are places at which it fails to free something.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch

from tests.unit.released import driving

FINISH, ABORT, REFUSAL, CLOSE, NODES = "finish", "abort", "refusal", "close", "nodes"
WINDOW, TAIL = "window", "tail"
"""What it can lose: a state slot of a request that finished, was aborted or was refused, or of a
session that closed; evicted nodes; a slot behind a window; a request's last page, which is not
full."""
# The number of its last tokens for which a request keeps slots of the window pool.
_KEPT = 2


class TreeNode:
    counter = 0

    def __init__(self, parent: TreeNode | None, key: Any, value: Any, mamba_value: Any) -> None:
        self.children: dict[int, TreeNode] = {}
        self.parent = parent
        self.key = key
        self.value = value
        self.mamba_value = mamba_value
        self.full_lock_ref = self.mamba_lock_ref = self.swa_lock_ref = 0
        self.swa_tombstone = False
        self.swa_value: Any = None
        self.id = TreeNode.counter
        TreeNode.counter += 1


class UnifiedTreeNode(TreeNode):
    @property
    def component_data(self) -> list[SimpleNamespace]:
        values = (
            (self.value, self.full_lock_ref),
            (None if self.swa_tombstone else self.swa_value, self.swa_lock_ref),
            (self.mamba_value, self.mamba_lock_ref),
        )
        return [
            SimpleNamespace(value=value, lock_ref=locks) for value, locks in (*values, (None, 0))
        ]


class Reason:
    def __init__(self, kind: str, message: str = "") -> None:
        self.kind, self.message = kind, message

    def to_json(self) -> dict[str, str]:
        return {"type": self.kind, "message": self.message}


@dataclass
class Memory:
    """What a request or a session holds; each generation exposes it under other names."""

    req_pool_idx: int | None = None
    kv_allocated_len: int = 0
    cache_protected_len: int = 0
    mamba_pool_idx: Any = None
    mamba_ping_pong_track_buffer: Any = None
    mamba_last_track_seqlen: int | None = None


def _layout(number: list[int]) -> dict[str, property]:
    """Return the properties under which a release's records expose their memory."""
    if number >= [0, 5, 19]:
        return {"kv": property(lambda self: self.memory)}
    names = {one.name: property(attrgetter(f"memory.{one.name}")) for one in fields(Memory)}
    if number >= [0, 5, 16]:
        del names["kv_allocated_len"]
        names["kv"] = property(
            lambda self: None if self.memory.req_pool_idx is None else self.memory
        )
    return names


class Req:
    def __init__(self, rid: str, tokens: Any, params: Any, session: Any = None) -> None:
        self.rid, self.origin_input_ids, self.sampling_params = rid, tokens, params
        self.session = session
        self.submitted_s = time.monotonic()
        self.output_ids: list[int] = []
        self.cached_tokens = 0
        self.memory = Memory()
        self.last_node: TreeNode | None = None
        self.to_finish: Reason | None = None
        self.finished_reason: Reason | None = None

    def finished(self) -> bool:
        return self.finished_reason is not None


class ScheduleBatch:
    def __init__(self, reqs: list[Req], extends: bool = False) -> None:
        self.reqs = reqs
        self.forward_mode = SimpleNamespace(is_extend=lambda: extends)
        self.seq_lens = torch.zeros(len(reqs))
        self.extend_num_tokens = sum(len(req.origin_input_ids) for req in reqs)
        self.extends = extends

    def copy(self) -> ScheduleBatch:
        return ScheduleBatch(list(self.reqs), self.extends)


class PrefillAdder:
    def __init__(self, most: int) -> None:
        self.can_run_list: list[Req] = []
        self._most = most

    def add_one_req(self, req: Req, **_: object) -> bool:
        fits = len(self.can_run_list) < self._most
        if fits:
            self.can_run_list.append(req)
        return fits


class TokenToKVPoolAllocator:
    def __init__(self, size: int, *_: object) -> None:
        self.size = size
        self.free_pages = torch.arange(1, size + 1)
        self.release_pages: Any = torch.empty(0, dtype=torch.int64)

    def alloc(self, count: int) -> Any:
        taken, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        assert len(taken) == count, "the pool is too small for this test"
        return taken

    def available_size(self) -> int:
        return len(self.free_pages)

    def free(self, slots: Any) -> None:
        self.free_pages = torch.cat((self.free_pages, slots))


class PagedTokenToKVPoolAllocator(TokenToKVPoolAllocator):
    """An allocator whose kernels, which are names of this module, run on a GPU."""

    def __init__(self, size: int, page_size: int, *_: object) -> None:
        super().__init__(size // page_size)
        self.size, self.page_size = size, page_size
        self.release_pages = None

    def alloc(self, count: int) -> Any:
        """Allocate the slots of a prompt and of one more token."""
        size, none = self.page_size, torch.zeros(1, dtype=torch.int64)
        slots = torch.zeros(count - 1, dtype=torch.int64)
        pages = -(-(count - 1) // size)
        globals()["alloc_extend_kernel"][(1,)](
            none, none + count - 1, none, self.free_pages, slots, 1, size
        )
        self.free_pages = self.free_pages[pages:]
        last = none.clone()
        globals()["alloc_decode_kernel"][(1,)](
            none + count, slots[-1:], self.free_pages, last, 1, size
        )
        self.free_pages = self.free_pages[-(-count // size) - pages :]
        return torch.cat((slots, last))

    def available_size(self) -> int:
        return len(self.free_pages) * self.page_size

    def free(self, slots: Any) -> None:
        super().free((slots // self.page_size).unique())


class SWAKVPool:
    def __init__(self, *, size: int, size_swa: int, **_: object) -> None:
        self.size, self.size_swa = size, size_swa


class SWATokenToKVPoolAllocator:
    def __init__(self, size: int, size_swa: int, *, kvcache: SWAKVPool, **_: object) -> None:
        assert (kvcache.size, kvcache.size_swa) == (size, size_swa)
        self.full_attn_allocator = TokenToKVPoolAllocator(size)
        self.swa_attn_allocator = TokenToKVPoolAllocator(size_swa)
        self.full_to_swa_index_mapping = torch.zeros(size + 1, dtype=torch.int64)

    def available_size(self) -> int:
        pools = (self.full_attn_allocator, self.swa_attn_allocator)
        return min(pool.available_size() for pool in pools)

    def alloc(self, count: int) -> Any:
        slots = self.full_attn_allocator.alloc(count)
        self.full_to_swa_index_mapping[slots] = self.swa_attn_allocator.alloc(count)
        return slots

    def free(self, slots: Any) -> None:
        self.full_attn_allocator.free(slots)
        self.free_swa(slots)

    def free_swa(self, slots: Any) -> None:
        windows = self.full_to_swa_index_mapping[slots]
        self.swa_attn_allocator.free(windows[windows > 0])
        self.full_to_swa_index_mapping[slots] = 0


class _NoStates:
    def alloc(self) -> None:
        """Return no state slot."""

    def free(self, slot: None) -> None:
        assert slot is None


class _States:
    def __init__(self, size: int) -> None:
        self.size = size
        self.free_slots = torch.arange(1, size + 1)

    def alloc(self) -> Any:
        slot, self.free_slots = self.free_slots[0], self.free_slots[1:]
        return slot

    def free(self, slot: Any) -> None:
        self.free_slots = torch.cat((self.free_slots, slot.reshape(1)))


class ReqToTokenPool:
    states: Any = _NoStates()

    def __init__(self, size: int, max_context_len: int, **_: object) -> None:
        self.size = size
        self.free_slots = list(range(1, size + 1))
        self.req_to_token = torch.zeros((size + 1, max_context_len), dtype=torch.int64)


class HybridReqToTokenPool(ReqToTokenPool):
    has_allocator = False

    def __init__(self, *, mamba_size: int, cache_params: object, **others: Any) -> None:
        del cache_params
        super().__init__(**others)
        self.states = _States(mamba_size)
        if self.has_allocator:
            self.mamba_pool: Any = SimpleNamespace(size=mamba_size)
            self.mamba_allocator = self.states
        else:
            self.mamba_pool = self.states


@dataclass
class SessionSlot:
    memory: Memory


@dataclass
class Session:
    session_id: str
    timeout: float | None
    req_nodes: dict[str, Any] = field(default_factory=dict)


class MambaRadixCache:
    """The tree; in releases with sessions, these wrap it."""

    node_class = TreeNode

    def __init__(self, rows: HybridReqToTokenPool, kv: TokenToKVPoolAllocator) -> None:
        self.rows, self.kv = rows, kv
        self.root_node = self.node_class(None, (), None, None)
        self.loses_nodes = False
        self.kept: list[TreeNode] = []

    def match(self, tokens: tuple[int, ...]) -> TreeNode:
        fitting = [
            node
            for node in self.root_node.children.values()
            if node.key == tokens[: len(node.key)] and len(node.key) < len(tokens)
        ]
        return max(fitting, key=lambda node: len(node.key), default=self.root_node)

    def insert(self, tokens: tuple[int, ...], value: Any, state: Any) -> bool:
        if any(node.key == tokens for node in self.root_node.children.values()):
            return False
        node = self.node_class(self.root_node, tokens, value, state)
        if isinstance(self.kv, SWATokenToKVPoolAllocator):
            windows = self.kv.full_to_swa_index_mapping[value]
            node.swa_value = windows[windows > 0]
        self.root_node.children[node.id] = node
        return True

    def evict(self, params: Any) -> None:
        if isinstance(self.kv, SWATokenToKVPoolAllocator):
            self._evict_windows(self.kv, params.num_tokens)
            return
        wanted = min(params.num_tokens, sum(len(n.value) for n in self.root_node.children.values()))
        for node in list(self.root_node.children.values()):
            if wanted <= 0:
                return
            wanted -= len(node.value)
            del self.root_node.children[node.id]
            self.kv.free(node.value)
            self.rows.states.free(node.mamba_value)
            if self.loses_nodes:
                self.kept.append(node)

    def _evict_windows(self, kv: SWATokenToKVPoolAllocator, wanted: int) -> None:
        """Make tombstones until the window pool has room, then evict nodes for the full pool."""
        for node in self.root_node.children.values():
            if not node.swa_tombstone and len(kv.swa_attn_allocator.free_pages) < wanted:
                node.swa_tombstone = True
                kv.free_swa(node.value)
        for node in list(self.root_node.children.values()):
            if len(kv.full_attn_allocator.free_pages) < wanted:
                del self.root_node.children[node.id]
                kv.free(node.value)


class SWARadixCache(MambaRadixCache):
    """The same tree under another name."""


class UnifiedRadixCache(MambaRadixCache):
    """A tree that includes sessions."""

    node_class = UnifiedTreeNode

    def __init__(self, rows: HybridReqToTokenPool, kv: TokenToKVPoolAllocator) -> None:
        super().__init__(rows, kv)
        self.session = StreamingSession(self)


class StreamingSession:
    def __init__(self, inner: MambaRadixCache) -> None:
        self.inner = inner
        self.slots: dict[str, SessionSlot] = {}


class SessionController:
    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}

    def maybe_reap(self, now: float) -> None:
        del now


class Scheduler:
    losses: frozenset[str] = frozenset()
    number: list[int]
    has_sessions = True
    tp_worker: Any
    ipc_channels: Any
    result_queue: Any

    def __init__(self, server_args: Any, port_args: Any, gpu_id: int, dp_rank: None) -> None:
        del port_args, gpu_id, dp_rank
        module = sys.modules["sglang.srt.managers.scheduler"]
        self.server_args = server_args
        self.init_model_config()
        self.init_ipc_channels(None)
        self.init_tp_model_worker()
        self.most_running = self.tp_worker.get_worker_info()[2]
        self.req_to_token_pool, self.token_to_kv_pool_allocator = self.tp_worker.get_memory_pool()
        kind = SWARadixCache if self.tp_worker.is_hybrid_swa else MambaRadixCache
        kind = UnifiedRadixCache if self._wants_unified_tree() else kind
        tree = kind(self.req_to_token_pool, self.token_to_kv_pool_allocator)
        tree.loses_nodes = NODES in self.losses
        self.tree = tree
        is_wrapped = self.has_sessions and kind is not UnifiedRadixCache
        self.tree_cache: Any = StreamingSession(tree) if is_wrapped else tree
        self.waiting_queue: list[Req] = []
        self.running_batch = ScheduleBatch([])
        self.last_batch: ScheduleBatch | None = None
        self.cur_batch = self.chunked_req = None
        self._engine_paused = False
        self.lost: list[Any] = []
        if self.has_sessions:
            self.session_controller = SessionController()
        self.module = module

    def _wants_unified_tree(self) -> bool:
        switches = sys.modules["sglang.srt.environ"].envs
        if self.number >= [0, 5, 16]:
            runner = self.tp_worker.model_runner
            has_states = isinstance(runner.model_config.hf_config, Qwen3NextConfig)
            return has_states or self.tp_worker.is_hybrid_swa
        return self.number >= [0, 5, 11] and bool(switches.SGLANG_ENABLE_UNIFIED_RADIX_TREE.value)

    def session_slots(self) -> dict[str, SessionSlot]:
        wrapper = self.tree_cache
        slots: dict[str, SessionSlot] = getattr(wrapper, "session", wrapper).slots
        return slots

    def late(self) -> list[Any]:
        """Return abort messages for the requests that waited too long."""
        longest_s = sys.modules["sglang.srt.environ"].envs.SGLANG_REQ_WAITING_TIMEOUT.value
        kind = sys.modules["sglang.srt.managers.io_struct"].AbortReq
        now_s = time.monotonic()
        return [
            kind(rid=req.rid)
            for req in self.waiting_queue
            if longest_s is not None and now_s - req.submitted_s > longest_s
        ]

    def handle_generate_request(self, received: Any) -> None:
        session = None
        if received.session_params is not None:
            session = self.session_controller.sessions[received.session_params.id]
        params = received.sampling_params
        self.waiting_queue.append(
            self.module.Req(received.rid, received.input_ids, params, session)
        )

    def get_next_batch_to_run(self) -> ScheduleBatch | None:
        for message in self.late():
            self.abort_request(message)
        return self.choose_batch()

    def choose_batch(self) -> ScheduleBatch | None:
        if self.last_batch is not None:
            self.running_batch.reqs += [
                req for req in self.last_batch.reqs if req not in self.running_batch.reqs
            ]
        running = [req for req in self.running_batch.reqs if not req.finished()]
        self.running_batch = ScheduleBatch(running)
        adder = self.module.PrefillAdder(min(2, self.most_running - len(running)))
        for req in self.waiting_queue:
            self._match(req)
            if not adder.add_one_req(req):
                if REFUSAL not in self.losses and req.memory.mamba_pool_idx is not None:
                    self._free_state(req)
                break
        if adder.can_run_list:
            for req in adder.can_run_list:
                self.waiting_queue.remove(req)
                self._admit(req)
            return ScheduleBatch(adder.can_run_list, extends=True)
        return self.running_batch if running else None

    def run_batch(self, batch: ScheduleBatch) -> Any:
        return self.tp_worker.forward_batch_generation(batch)

    def process_batch_result(self, batch: ScheduleBatch, result: Any) -> None:
        for req, token in zip(batch.reqs, result.next_token_ids.tolist(), strict=True):
            if req.finished():
                continue  # with overlap, the request ended while this step ran
            req.output_ids.append(token)
            if self.tp_worker.is_hybrid_swa and len(req.output_ids) > _KEPT:
                self._leave_behind(req, len(req.output_ids) - _KEPT - 1)
            if len(req.output_ids) > 1:
                # With track buffers, every second step saves a state.
                req.memory.mamba_last_track_seqlen = len(req.output_ids) // 2
            if req.to_finish is not None:
                req.finished_reason = req.to_finish
            elif len(req.output_ids) >= req.sampling_params.max_new_tokens:
                req.finished_reason = Reason("length")
            if req.finished():
                self._release(req)

    def abort_request(self, message: Any) -> None:
        for req in list(self.waiting_queue):
            if req.rid.startswith(message.rid):
                self.waiting_queue.remove(req)
                if req.memory.mamba_pool_idx is not None:
                    self._free_state(req)
                answer = sys.modules["sglang.srt.managers.io_struct"].AbortReq(rid=req.rid)
                self.ipc_channels.send_to_tokenizer.send_output(answer, req)
        batches = [self.running_batch, *([self.last_batch] if self.last_batch else [])]
        for req in [req for batch in batches for req in batch.reqs]:
            if req.rid.startswith(message.rid) and not req.finished():
                req.to_finish = Reason("abort", "its client asked for it")

    def pause_generation(self, message: Any) -> None:
        assert message.mode in {"in_place", "retract"}
        self._engine_paused = True
        if message.mode == "retract" and self.last_batch is not None and self.result_queue:
            self.process_batch_result(*self.result_queue.popleft())
            self.last_batch = None

    def continue_generation(self, message: Any) -> None:
        del message
        self._engine_paused = False

    def open_session(self, message: Any) -> None:
        self.session_controller.sessions[message.session_id] = Session(
            message.session_id, message.timeout
        )

    def close_session(self, message: Any) -> None:
        slot = self.session_slots().pop(message.session_id, None)
        del self.session_controller.sessions[message.session_id]
        if slot is not None:
            row = self.req_to_token_pool.req_to_token[slot.memory.req_pool_idx]
            self.token_to_kv_pool_allocator.free(row[: slot.memory.kv_allocated_len].clone())
            self.req_to_token_pool.free_slots.append(slot.memory.req_pool_idx)
            if CLOSE not in self.losses:
                self.req_to_token_pool.states.free(slot.memory.mamba_pool_idx)

    def _match(self, req: Req) -> None:
        node = self.tree.match(tuple(req.origin_input_ids))
        if (
            node is not self.tree.root_node
            and req.session is None
            and req.memory.mamba_pool_idx is None
        ):
            req.memory.mamba_pool_idx = self.req_to_token_pool.states.alloc()
            req.cached_tokens = len(node.key)

    def _admit(self, req: Req) -> None:
        rows, need = self.req_to_token_pool, len(req.origin_input_ids)
        need += req.sampling_params.max_new_tokens
        if self.token_to_kv_pool_allocator.available_size() < need + self.server_args.page_size:
            self.tree.evict(SimpleNamespace(num_tokens=need))
        slots = self.token_to_kv_pool_allocator.alloc(need)
        req.memory.req_pool_idx = rows.free_slots.pop()
        rows.req_to_token[req.memory.req_pool_idx, :need] = slots
        req.memory.kv_allocated_len = need
        if req.memory.mamba_pool_idx is None:
            req.memory.mamba_pool_idx = rows.states.alloc()

    def _release(self, req: Req) -> None:
        rows = self.req_to_token_pool
        assert req.memory.req_pool_idx is not None
        if req.session is not None and self.has_sessions:
            slot = self.module.SessionSlot(req.memory)
            self.session_slots()[req.session.session_id] = slot
            req.memory = Memory()
            return
        value = rows.req_to_token[req.memory.req_pool_idx, : req.memory.kv_allocated_len].clone()
        tokens = (*req.origin_input_ids, *req.output_ids)
        if self.server_args.page_size > 1:
            # The tree takes only whole pages.
            whole = len(tokens) // self.server_args.page_size * self.server_args.page_size
            tokens, value, rest = tokens[:whole], value[:whole], value[whole:]
            if TAIL not in self.losses:
                self.token_to_kv_pool_allocator.free(rest)
        is_abort = req.finished_reason is not None and req.finished_reason.kind == "abort"
        own = req.memory.mamba_pool_idx
        state = None if own is None else own.reshape(1)
        kept = not is_abort and self.tree.insert(tokens, value, state)
        if not kept:
            self.token_to_kv_pool_allocator.free(value)
        rows.free_slots.append(req.memory.req_pool_idx)
        req.memory.req_pool_idx = None
        if kept and FINISH in self.losses:
            # Lose one slot more than was given to the tree.
            self.lost.append(rows.states.alloc())
        if kept or (is_abort and ABORT in self.losses):
            req.memory.mamba_pool_idx = None
        else:
            self._free_state(req)

    def _leave_behind(self, req: Req, position: int) -> None:
        kv, row = self.token_to_kv_pool_allocator, req.memory.req_pool_idx
        slot = self.req_to_token_pool.req_to_token[row, position : position + 1].clone()
        if WINDOW in self.losses and kv.full_to_swa_index_mapping[slot] % 5 == 0:
            kv.full_to_swa_index_mapping[slot] = 0
        else:
            kv.free_swa(slot)

    def _free_state(self, req: Req) -> None:
        self.req_to_token_pool.states.free(req.memory.mamba_pool_idx)
        req.memory.mamba_pool_idx = None

    def init_model_config(self) -> None:
        raise NotImplementedError

    def init_ipc_channels(self, port_args: object) -> None:
        raise NotImplementedError

    def init_tp_model_worker(self) -> None:
        raise NotImplementedError


class PlanningScheduler(Scheduler):
    """Also returns the running batch, and reads its process groups from a context."""

    def __init__(self, server_args: Any, port_args: Any, gpu_id: int, dp_rank: None) -> None:
        super().__init__(server_args, port_args, gpu_id, dp_rank)
        context = sys.modules["sglang.srt.runtime_context"]
        self.tp_group, self.tp_rank = context.parallel.tp_group, context.parallel.tp_rank

    def get_next_batch_to_run(self, running_batch: ScheduleBatch, last_batch: Any) -> Any:  # type: ignore[override]
        assert (running_batch, last_batch) == (self.running_batch, self.last_batch)
        batch = super().get_next_batch_to_run()
        running, self.running_batch = self.running_batch, running_batch
        return SimpleNamespace(batch_to_run=batch, running_batch=running)


class PollingScheduler(PlanningScheduler):
    """Polls for requests that waited too long."""

    _poll_timeout_aborts = Scheduler.late

    def get_next_batch_to_run(self, running_batch: ScheduleBatch, last_batch: Any) -> Any:  # type: ignore[override]
        batch = self.choose_batch()
        running, self.running_batch = self.running_batch, running_batch
        return SimpleNamespace(batch_to_run=batch, running_batch=running)


class PlacedScheduler(PollingScheduler):
    """Also reads its ranks from a context, and creates its process groups itself."""

    def __init__(self, server_args: Any, port_args: Any) -> None:
        module: Any = sys.modules["sglang.srt.managers.scheduler"]
        module.bootstrap.init_parallel_runtime(server_args=server_args)
        module.bootstrap.init_layer_runtime(model_config=None)
        super().__init__(server_args, port_args, 0, None)


class Parallel:
    """A context that raises for a process group that was never created."""

    def __init__(self) -> None:
        self._overrides: dict[str, Any] = {}

    @property
    def tp_group(self) -> Any:
        return self._overrides["tp_group"]

    @property
    def tp_rank(self) -> int:
        rank: int = self._overrides["tp_rank"]
        return rank


class Qwen3NextConfig:
    pass


class _Switch:
    def __init__(self) -> None:
        self.value: object = None

    def set(self, value: object) -> None:
        self.value = value

    def is_set(self) -> bool:
        return self.value is not None


@dataclass
class ServerArgs:
    model_path: str = ""
    page_size: int = 1
    schedule_policy: str = "fcfs"


class SamplingParams:
    def __init__(self, max_new_tokens: int, **_: object) -> None:
        self.max_new_tokens = max_new_tokens

    def normalize(self, tokenizer: None) -> None:
        del tokenizer


class Message:
    """A message of any kind; fields of an abort that are not given are None."""

    finished_reason = abort_message = None

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


class StrictRequest(Message):
    """A message with required fields."""

    def __init__(self, *, input_embeds: None, token_type_ids: None, **given: Any) -> None:
        super().__init__(input_embeds=input_embeds, token_type_ids=token_type_ids, **given)


class AbortReq(Message):
    pass


def installed(release: str, *losses: str) -> AbstractContextManager[None]:
    """Make a package ``sglang`` of ``release`` importable in the context."""
    return driving.installed("sglang", _modules(release, frozenset(losses)))


def _scheduler_class(number: list[int]) -> type[Scheduler]:
    if number >= [0, 5, 21]:
        return PlacedScheduler
    if number >= [0, 5, 20]:
        return PollingScheduler
    return PlanningScheduler if number >= [0, 5, 16] else Scheduler


def _modules(release: str, losses: frozenset[str]) -> dict[str, types.ModuleType]:
    number = [int(part) for part in release.split(".")[:3]]
    has_sessions, has_allocator = number >= [0, 5, 10], number >= [0, 5, 13]
    own = {"losses": losses, "has_sessions": has_sessions, "number": number}
    scheduler = type("Scheduler", (_scheduler_class(number),), own)
    scheduler.__module__ = "sglang.srt.managers.scheduler"
    rows = type("HybridReqToTokenPool", (HybridReqToTokenPool,), {"has_allocator": has_allocator})
    adder = type("PrefillAdder", (PrefillAdder,), {})
    req, slot = (type(one.__name__, (one,), _layout(number)) for one in (Req, SessionSlot))
    bootstrap = SimpleNamespace(init_parallel_runtime=None, init_layer_runtime=None)
    session = "session" if number >= [0, 5, 11] else "managers"
    record = (
        "session.streaming_session" if number >= [0, 5, 11] else "mem_cache.session_aware_cache"
    )
    switches = [
        "SGLANG_INIT_NEW_TOKEN_RATIO", "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR",
        "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS", "SGLANG_REQ_WAITING_TIMEOUT",
    ]  # fmt: skip
    if [0, 5, 11] <= number < [0, 5, 19]:
        switches.append("SGLANG_ENABLE_UNIFIED_RADIX_TREE")
    if number >= [0, 5, 21]:
        switches.append("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND")
    if number >= [0, 5, 15]:
        switches.append("SGLANG_SWA_EVICTION_INTERVAL")
    elif number >= [0, 5, 11]:
        switches.append("SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER")
    window_allocator = {"SWATokenToKVPoolAllocator": SWATokenToKVPoolAllocator}
    shapes = SimpleNamespace(create=lambda **_: None)
    contents: dict[str, Mapping[str, Any]] = {
        "managers.scheduler": {
            "Scheduler": scheduler,
            "PrefillAdder": adder,
            "Req": req,
            "SessionSlot": slot,
            **({"bootstrap": bootstrap} if number >= [0, 5, 21] else {}),
            "GenerationBatchResult": SimpleNamespace,
            "__file__": __file__,
        },
        "managers.schedule_batch": {"Req": req},
        "managers.io_struct": {
            "AbortReq": AbortReq,
            **dict.fromkeys(
                (
                    "SessionParams", "PauseGenerationReqInput", "ContinueGenerationReqInput",
                    "OpenSessionReqInput", "CloseSessionReqInput",
                ),
                Message,
            ),
            "TokenizedGenerateReqInput": StrictRequest if number >= [0, 5, 15] else Message,
        },
        f"{session}.session_controller": {"Session": Session},
        record: {"SessionSlot": slot},
        "mem_cache.memory_pool": {
            "ReqToTokenPool": ReqToTokenPool,
            "HybridReqToTokenPool": rows,
        },
        "mem_cache.allocator": {
            "TokenToKVPoolAllocator": TokenToKVPoolAllocator,
            "PagedTokenToKVPoolAllocator": PagedTokenToKVPoolAllocator,
        },
        "mem_cache.swa_memory_pool": {
            "SWAKVPool": SWAKVPool, **({} if has_allocator else window_allocator)
        },
        **({"mem_cache.allocator.swa": window_allocator} if has_allocator else {}),
        "mem_cache.base_prefix_cache": {"EvictParams": Message},
        "sampling.sampling_params": {"SamplingParams": SamplingParams},
        "configs.mamba_utils": {"Mamba2StateShape": shapes, "Mamba2CacheParams": lambda **_: None},
        "configs.qwen3_next": {"Qwen3NextConfig": Qwen3NextConfig},
        "environ": {"envs": SimpleNamespace(**{name: _Switch() for name in switches})},
        "server_args": {
            "ServerArgs": ServerArgs,
            "set_global_server_args_for_scheduler": lambda _: None,
        },
    }  # fmt: skip
    if number >= [0, 5, 15]:
        parallel = Parallel()
        contents["runtime_context"] = {"parallel": parallel, "get_parallel": lambda: parallel}
    made: dict[str, types.ModuleType] = {}
    for path, content in contents.items():
        parts = ["sglang", "srt", *path.split(".")]
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name not in made:
                made[name] = types.ModuleType(name)
                made[name].__path__ = []
        vars(made[".".join(parts)]).update(content)
    return made
