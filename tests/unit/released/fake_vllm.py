"""A small fake of vLLM's scheduler, with the interfaces of each generation of releases.

It has everything the adapter calls, with the names and types of the releases, and is otherwise as
simple as possible.  ``losses`` are places at which it fails to free something.
"""

from __future__ import annotations

import enum
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.unit.released import driving

FINISH, ABORT, REFERENCE, EARLY, TABLE, LIST, KEEP = (
    "finish", "abort", "reference", "early", "table", "list", "keep",
)  # fmt: skip
"""What it can lose: the blocks of a request that finished or was aborted; one reference of a freed
block.  With ``EARLY`` it frees a block of a running request, with ``TABLE`` a table keeps an empty
entry per request, with ``LIST`` a list grows with each block, and with ``KEEP`` an object outside
the scheduler keeps each request."""


class RequestStatus(enum.IntEnum):
    WAITING = 1
    RUNNING = 2
    PREEMPTED = 3
    FINISHED_STOPPED = 4
    FINISHED_LENGTH_CAPPED = 5
    FINISHED_ABORTED = 6


class Request:
    def __init__(
        self,
        *,
        request_id: str,
        prompt_token_ids: list[int],
        sampling_params: Any,
        pooling_params: None,
        priority: int,
        cache_salt: str | None,
        block_hasher: Callable[[Any], list[Any]],
    ) -> None:
        del pooling_params
        self.request_id, self.priority, self.cache_salt = request_id, priority, cache_salt
        self.sampling_params = sampling_params
        self.num_prompt_tokens = len(prompt_token_ids)
        self.all_token_ids = list(prompt_token_ids)
        self.output_token_ids: list[int] = []
        self.num_computed_tokens = 0
        self.status = RequestStatus.WAITING
        self.hash_of = block_hasher

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    def is_finished(self) -> bool:
        return self.status > RequestStatus.PREEMPTED

    def get_finished_reason(self) -> str:
        return ("stop", "length", "abort")[self.status - RequestStatus.FINISHED_STOPPED]


class KVCacheBlock:
    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self._block_hash: Any = None
        self.is_null = False
        self.prev_free_block: KVCacheBlock | None = None
        self.next_free_block: KVCacheBlock | None = None


class FreeKVCacheBlockQueue:
    def __init__(self, blocks: list[KVCacheBlock]) -> None:
        self.fake_free_list_head, self.fake_free_list_tail = KVCacheBlock(-1), KVCacheBlock(-1)
        self.fake_free_list_head.next_free_block = self.fake_free_list_tail
        self.fake_free_list_tail.prev_free_block = self.fake_free_list_head
        for block in blocks:
            self.append(block)

    def append(self, block: KVCacheBlock) -> None:
        last = self.fake_free_list_tail.prev_free_block
        assert last is not None
        last.next_free_block, block.prev_free_block = block, last
        block.next_free_block = self.fake_free_list_tail
        self.fake_free_list_tail.prev_free_block = block

    def remove(self, block: KVCacheBlock) -> None:
        before, after = block.prev_free_block, block.next_free_block
        assert before is not None
        assert after is not None
        before.next_free_block, after.prev_free_block = after, before

    def popleft(self) -> KVCacheBlock | None:
        first = self.fake_free_list_head.next_free_block
        assert first is not None
        if first is self.fake_free_list_tail:
            return None
        self.remove(first)
        return first


class BlockPool:
    def __init__(self, count: int) -> None:
        self.blocks = [KVCacheBlock(number) for number in range(count)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        null = self.free_block_queue.popleft()
        assert null is not None
        null.is_null = True
        self.null_block = null
        self.by_hash: dict[Any, KVCacheBlock] = {}

    def take(self) -> KVCacheBlock | None:
        block = self.free_block_queue.popleft()
        if block is not None:
            self.by_hash.pop(block._block_hash, None)
            block._block_hash = None
            block.ref_cnt = 1
        return block

    def free(self, block: KVCacheBlock) -> None:
        block.ref_cnt -= 1
        if block.ref_cnt == 0:
            self.free_block_queue.append(block)


class FullAttentionManager:
    def __init__(self) -> None:
        self.req_to_blocks: defaultdict[str, list[KVCacheBlock]] = defaultdict(list)
        self.new_block_ids: list[int] = []


class KVCacheManager:
    block_size = 16

    def __init__(self, count: int, losses: frozenset[str]) -> None:
        self.block_pool = BlockPool(count)
        self.coordinator = SimpleNamespaceOfRelease()
        self.coordinator.single_type_managers = (FullAttentionManager(),)
        self._losses = losses
        self._manager = self.coordinator.single_type_managers[0]

    def match(self, request: Request) -> None:
        """Take cached blocks; the last token is always computed."""
        table = self._manager.req_to_blocks[request.request_id]
        for end in range(16, request.num_tokens, 16):
            block = self.block_pool.by_hash.get(request.hash_of(request.all_token_ids[:end]))
            if block is None:
                break
            if block.ref_cnt == 0:
                self.block_pool.free_block_queue.remove(block)
            block.ref_cnt += 1
            table.append(block)
        request.num_computed_tokens = 16 * len(table)

    def allocate_slots(self, request: Request, tokens: int) -> list[KVCacheBlock] | None:
        table = self._manager.req_to_blocks[request.request_id]
        new: list[KVCacheBlock] = []
        while 16 * (len(table) + len(new)) < tokens:
            block = self.block_pool.take()
            if block is None:
                for one in new:
                    self.block_pool.free(one)
                return None
            new.append(block)
        table += new
        if LIST in self._losses:
            self._manager.new_block_ids += [block.block_id for block in new]
        for index in range(request.num_computed_tokens // 16, tokens // 16):
            block, key = table[index], request.hash_of(request.all_token_ids[: 16 * index + 16])
            if block._block_hash is None and key not in self.block_pool.by_hash:
                block._block_hash, self.block_pool.by_hash[key] = key, block
        return new

    def free(self, request: Request) -> None:
        blocks = self._manager.req_to_blocks.pop(request.request_id, [])
        if TABLE in self._losses:
            self._manager.req_to_blocks[request.request_id + " ended"] = []
        for block in reversed(blocks):
            self.block_pool.free(block)
        if REFERENCE in self._losses and blocks and blocks[0].ref_cnt == 0:
            self.block_pool.free_block_queue.remove(blocks[0])
            blocks[0].ref_cnt = 1


class SimpleNamespaceOfRelease:
    single_type_managers: tuple[FullAttentionManager, ...]


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list[Any] = field(default_factory=list)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


class Scheduler:
    losses: frozenset[str] = frozenset()

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        structured_output_manager: Any,
        block_size: int,
        hash_block_size: int | None = None,
        log_stats: bool = False,
    ) -> None:
        del structured_output_manager, hash_block_size
        assert block_size == KVCacheManager.block_size
        assert log_stats
        self.limits = vllm_config.scheduler_config
        self.kv_cache_manager = KVCacheManager(kv_cache_config.num_blocks, self.losses)
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.finished_req_ids: set[str] = set()

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def has_requests(self) -> bool:
        return bool(self.requests or self.finished_req_ids)

    def schedule(self) -> SchedulerOutput:
        plan, room = SchedulerOutput(), self.limits.max_num_batched_tokens
        for request in list(self.running):
            if request not in self.running:
                continue
            tokens = min(room, request.num_tokens - request.num_computed_tokens)
            while tokens and not self._gets(request, tokens, plan):
                self._preempt(self.running[-1], plan)
                if request not in self.running:
                    tokens = 0
            room -= tokens
        while self.waiting and room and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            self.kv_cache_manager.match(request)
            hit = request.num_computed_tokens
            tokens = min(room, request.num_tokens - hit)
            if not self._gets(request, tokens, plan):
                self.kv_cache_manager.free(request)
                request.num_computed_tokens = 0
                break
            self.waiting.popleft()
            request.status = RequestStatus.RUNNING
            self.running.append(request)
            plan.scheduled_new_reqs.append(
                SimpleNamespace(req_id=request.request_id, num_computed_tokens=hit)
            )
            room -= tokens
        for rid, tokens in plan.num_scheduled_tokens.items():
            self.requests[rid].num_computed_tokens += tokens
        self.finished_req_ids = set()
        return plan

    def update_from_output(self, plan: SchedulerOutput, output: Any) -> None:
        for rid in plan.num_scheduled_tokens:
            request = self.requests[rid]
            for token in output.sampled_token_ids[output.req_id_to_index[rid]]:
                request.all_token_ids.append(token)
                request.output_token_ids.append(token)
                if len(request.output_token_ids) >= request.sampling_params.max_tokens:
                    request.status = RequestStatus.FINISHED_LENGTH_CAPPED
                    self.running.remove(request)
                    self._free(request, loses=FINISH)
        if EARLY in self.losses and self.running:
            manager = self.kv_cache_manager.coordinator.single_type_managers[0]
            self.kv_cache_manager.block_pool.free(
                manager.req_to_blocks[self.running[0].request_id][-1]
            )

    def finish_requests(self, rid: str, status: RequestStatus) -> None:
        request = self.requests.get(rid)
        if request is not None:
            queue: Any = self.running if request in self.running else self.waiting
            queue.remove(request)
            request.status = status
            self._free(request, loses=ABORT)

    def reset_prefix_cache(self) -> bool:
        pool = self.kv_cache_manager.block_pool
        for block in pool.by_hash.values():
            block._block_hash = None
        pool.by_hash.clear()
        return True

    def _gets(self, request: Request, tokens: int, plan: SchedulerOutput) -> bool:
        end = request.num_computed_tokens + tokens
        if self.kv_cache_manager.allocate_slots(request, end) is None:
            return False
        plan.num_scheduled_tokens[request.request_id] = tokens
        return True

    def _preempt(self, request: Request, plan: SchedulerOutput) -> None:
        self.running.remove(request)
        plan.num_scheduled_tokens.pop(request.request_id, None)
        self.kv_cache_manager.free(request)
        request.num_computed_tokens = 0
        request.status = RequestStatus.PREEMPTED
        self.waiting.appendleft(request)

    def _free(self, request: Request, loses: str) -> None:
        if loses not in self.losses:
            self.kv_cache_manager.free(request)
        if KEEP in self.losses:
            KEPT.append(request)
        self.finished_req_ids.add(request.request_id)
        del self.requests[request.request_id]


KEPT: list[Request] = []


@contextmanager
def installed(*losses: str) -> Iterator[None]:
    """Make a package ``vllm`` importable in the context; all releases have the same interface."""
    try:
        with driving.installed("vllm", _modules(frozenset(losses))):
            yield
    finally:
        KEPT.clear()


def _modules(losses: frozenset[str]) -> dict[str, types.ModuleType]:
    scheduler = type("Scheduler", (Scheduler,), {"losses": losses})
    for kind in (scheduler, KVCacheManager, BlockPool, FullAttentionManager, FreeKVCacheBlockQueue):
        kind.__module__ = "vllm.v1.core"
    SimpleNamespaceOfRelease.__module__ = "vllm.v1.core"
    spec = {
        "FullAttentionSpec": _FullAttention,
        "SlidingWindowSpec": _SlidingWindow,
        "MambaSpec": _Mamba,
    }
    contents: dict[str, dict[str, Any]] = {
        "config": {
            "VllmConfig": _Settings, "SchedulerConfig": _Scheduling, "CacheConfig": _Caching,
        },
        "sampling_params": {"SamplingParams": _Settings},
        "utils.hashing": {"get_hash_fn_by_name": lambda _: hash},
        "v1.request": {"Request": Request, "RequestStatus": RequestStatus, "__file__": __file__},
        "v1.outputs": {"ModelRunnerOutput": _Settings},
        "v1.structured_output": {"StructuredOutputManager": lambda _: None},
        "v1.kv_cache_interface": {
            "KVCacheGroupSpec": lambda layers, spec: (layers, spec),
            "KVCacheConfig": _Settings,
            **spec,
        },
        "v1.core.kv_cache_utils": {
            "resolve_kv_cache_block_sizes": lambda _, settings: (
                settings.cache_config.block_size, settings.cache_config.block_size,
            ),
            "init_none_hash": lambda _: None,
            "get_request_block_hasher": lambda *_: tuple,
        },
        "v1.core.sched.scheduler": {"Scheduler": scheduler},
    }  # fmt: skip
    made: dict[str, types.ModuleType] = {}
    for path, content in contents.items():
        parts = ["vllm", *path.split(".")]
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name not in made:
                made[name] = types.ModuleType(name)
                made[name].__path__ = []
        vars(made[".".join(parts)]).update(content)
    return made


class _Settings(SimpleNamespace):
    """Settings of any kind, with the given fields."""


@dataclass
class _Scheduling:
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    policy: str


@dataclass
class _Caching:
    block_size: int
    enable_prefix_caching: bool
    prefix_caching_hash_algo: str = "sha256"


@dataclass
class _FullAttention:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: Any


@dataclass
class _SlidingWindow(_FullAttention):
    sliding_window: int


@dataclass
class _Mamba:
    block_size: int
    shapes: Any
    dtypes: Any
    mamba_cache_mode: str
