"""The scheduler of a vLLM release, built by its own constructor, with a model that draws tokens.

Everything between a request and the model is the release's: queues, admission, chunks, preemption,
aborts, block tables, prefix cache and block pool.  The loop is that of its ``EngineCore.step``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import logging
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EngineConfig, PauseMode
from hybridbench.released.adapter import UNCOUNTED_CALLS, VOCAB_SIZE, Step, not_driven
from hybridbench.released.vllm.accounts import BlockAccounts, BlockWatch, free_blocks, uncached
from hybridbench.released.vllm.parts import RELEASES, build_scheduler

# Objects of these modules do not change while requests are served.
_CONSTANT: Final = ("vllm.config", "vllm.multimodal", "vllm.v1.kv_cache_interface")


@dataclass
class _Record:
    """vLLM's record of a request, as the driving loop reads it."""

    req: Any
    cached_tokens: int = 0
    holds_state: bool = False

    @property
    def output_ids(self) -> Sequence[int]:
        tokens: Sequence[int] = self.req.output_token_ids
        return tokens

    @property
    def prompt_tokens(self) -> int:
        tokens: int = self.req.num_prompt_tokens
        return tokens

    @property
    def end(self) -> tuple[str, str] | None:
        if not self.req.is_finished():
            return None
        kind = str(self.req.get_finished_reason())
        return (kind if kind in {"length", "stop"} else "abort"), ""


class VllmScheduler:
    """Owns the release's ``Scheduler``, and gives read access to its structures."""

    package = "vllm"
    has_sessions = False

    def __init__(self, config: EngineConfig) -> None:
        """Build the release's scheduler.

        Raises:
            ConfigError: the release is unknown, or ``config`` has an unsupported setting.
        """
        # A build for CPUs adds its name to the version.
        self.release = importlib.metadata.version(self.package).partition("+")[0]
        if self.release not in RELEASES:
            raise not_driven(self.package, self.release, RELEASES)
        logging.getLogger("vllm").setLevel(logging.ERROR)
        self._config = config
        self._step = Step()
        self._records: dict[str, _Record] = {}
        self._scheduler, self._hasher = build_scheduler(config)
        self._count_refusals()
        self.cache_name = type(self._scheduler.kv_cache_manager.coordinator).__name__
        self.uncounted = UNCOUNTED_CALLS
        self.accounts = BlockAccounts(self)
        self._owners = dict(_named(_parts(self._scheduler)))
        request: Any = importlib.import_module("vllm.v1.request")
        self._request_class: Any = request.Request
        self._aborted = request.RequestStatus.FINISHED_ABORTED
        self._sampling: Any = importlib.import_module("vllm.sampling_params").SamplingParams
        self._output: Any = importlib.import_module("vllm.v1.outputs").ModelRunnerOutput
        self.is_paused = False

    # Traffic.

    def submit(
        self,
        rid: str,
        input_ids: Sequence[int],
        params: SamplingParams,
        session_id: str | None,
        priority: int | None,
        extra_key: str | None,
    ) -> _Record | None:
        """Submit a request; None if vLLM's front end would refuse it for its length."""
        room = self._config.max_context_len - len(input_ids)
        if room <= 0 or not input_ids:
            longest = self._config.max_context_len - 1
            self._step.sent_away[rid] = f"prompt of {len(input_ids)} tokens; 1 to {longest} fit"
            return None
        sampling = self._sampling(
            max_tokens=min(params.max_new_tokens, room),
            temperature=params.temperature,
            stop_token_ids=list(params.stop_token_ids),
            ignore_eos=params.ignore_eos,
            detokenize=False,
        )
        request = self._request_class(
            request_id=rid,
            prompt_token_ids=list(input_ids),
            sampling_params=sampling,
            pooling_params=None,
            priority=self._order(priority),
            cache_salt=extra_key,
            block_hasher=self._hasher,
        )
        self._scheduler.add_request(request)
        record = self._records[rid] = _Record(request)
        return record

    def abort(self, rid: str) -> None:
        """Abort one request."""
        if rid in self._records:
            self._scheduler.finish_requests(rid, self._aborted)
            self._step.sent_away[rid] = "aborted"

    def pause(self, mode: PauseMode) -> None:
        """Run nothing until ``resume``."""
        self.is_paused = True

    def resume(self) -> None:
        """Resume if paused."""
        self.is_paused = False

    def step(self) -> Step:
        """Run one iteration of the release's loop."""
        done, scheduler = self._step, self._scheduler
        if not self.is_paused and scheduler.has_requests():
            planned = scheduler.schedule()
            done.tokens = planned.total_num_scheduled_tokens
            self._note_batch(planned, done)
            scheduler.update_from_output(planned, self._answer(planned))
        for rid in done.sent_away:
            self._records.pop(rid, None)
        for req in done.reqs:
            if req.is_finished():
                self._records.pop(req.request_id, None)
        self._step = Step()
        return done

    @property
    def has_sent_away(self) -> bool:
        """Whether the next step will report the end of a request, to a client or to workers."""
        return bool(self._step.sent_away or self._scheduler.finished_req_ids)

    # Sessions.

    def sessions(self) -> Mapping[str, Any]:
        """Nothing: there are no sessions that keep their KV."""
        return {}

    def open_session(self, session_id: str, timeout_s: float | None) -> bool:
        """False: there are no sessions that keep their KV."""
        return False

    def close_session(self, session_id: str) -> None:
        """Do nothing."""

    def reap_sessions(self) -> None:
        """Do nothing."""

    # Structures.

    def waiting(self) -> Sequence[Any]:
        """Requests that are not running, including preempted ones."""
        running = set(map(id, self._scheduler.running))
        return [
            req
            for req in self._scheduler.requests.values()
            if id(req) not in running and not req.is_finished()
        ]

    def admitted(self) -> Sequence[Any]:
        """Requests that run."""
        return [req for req in self._scheduler.running if not req.is_finished()]

    @property
    def is_at_rest(self) -> bool:
        """Whether no request is waiting or running."""
        return not self._scheduler.running and not self.waiting()

    def used_slots(self) -> tuple[int, ...]:
        """Number of blocks that a request holds or that can be hit."""
        pool = self.pool()
        return (len(pool.blocks) - 1 - uncached(free_blocks(pool)),)

    def pool(self) -> Any:
        """The block pool."""
        return self._scheduler.kv_cache_manager.block_pool

    def managers(self) -> Sequence[Any]:
        """One for each kind of layer."""
        found: Sequence[Any] = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        return found

    def evict_all(self) -> None:
        """Forget all hashes; the free queue stays as it is."""
        self._scheduler.reset_prefix_cache()

    def watch(self, counters: EngineCounters) -> BlockWatch:
        """Count the blocks that enter and leave the cache, in ``counters``."""
        return BlockWatch(self.pool(), counters)

    def containers(self) -> dict[str, int]:
        """Length of every container of the scheduler and of the objects below it, by name."""
        return {
            f"{owner}.{name}": len(value)
            for owner, one in self._owners.items()
            for name, value in vars(one).items()
            if isinstance(value, dict | list | set | deque)
        } | {owner: len(one) for owner, one in self._owners.items() if isinstance(one, deque)}

    def objects(self, reported: Sequence[Any]) -> dict[str, tuple[type, int]]:
        """Classes of requests and blocks, with the number of instances that are held."""
        scheduler = self._scheduler
        held = {id(req) for req in (*scheduler.requests.values(), *scheduler.running, *reported)}
        blocks = self.pool().blocks
        return {
            "Request": (self._request_class, len(held)),
            "KVCacheBlock": (type(blocks[0]), len(blocks)),
        }

    def sources(self) -> tuple[str, int]:
        """SHA-256 of the release's files for scheduling and memory, and their number."""
        request = Path(str(importlib.import_module("vllm.v1.request").__file__))
        files = [request, *sorted((request.parent / "core").rglob("*.py"))]
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.relative_to(request.parent)}\0".encode())
            digest.update(path.read_bytes())
        return digest.hexdigest(), len(files)

    def _order(self, priority: int | None) -> int:
        """Convert a priority to the release's, which serves the smallest value first."""
        config = self._config
        value = config.default_priority_value if priority is None else priority
        return value if config.schedule_low_priority_values_first else -value

    def _note_batch(self, planned: Any, done: Step) -> None:
        """Record in ``done`` what the scheduler plans to compute."""
        for new in planned.scheduled_new_reqs:
            self._records[new.req_id].cached_tokens = new.num_computed_tokens
        requests = self._scheduler.requests
        done.reqs = [requests[rid] for rid in planned.num_scheduled_tokens]
        # `schedule` has already counted the tokens that this step computes.
        began = {
            id(req): req.num_computed_tokens - planned.num_scheduled_tokens[req.request_id]
            for req in done.reqs
        }
        done.prefilled = frozenset(
            id(req) for req in done.reqs if began[id(req)] < max(req.num_prompt_tokens, 1)
        )
        done.cut = frozenset(
            id(req) for req in done.reqs if req.num_computed_tokens < req.num_tokens
        )
        done.prompt_tokens = sum(
            planned.num_scheduled_tokens[req.request_id]
            for req in done.reqs
            if id(req) in done.prefilled
        )
        if done.reqs:
            done.mode = "extend" if done.prefilled else "decode"

    def _answer(self, planned: Any) -> Any:
        """Build the model's output: a token for each request whose tokens are all computed."""
        requests = self._scheduler.requests
        rids = list(planned.num_scheduled_tokens)
        tokens = [
            [_token(rid, req.num_tokens)] if req.num_computed_tokens >= req.num_tokens else []
            for rid, req in ((rid, requests[rid]) for rid in rids)
        ]
        return self._output(
            req_ids=rids,
            req_id_to_index={rid: index for index, rid in enumerate(rids)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def _count_refusals(self) -> None:
        """Count requests that got no blocks and stay in the queue."""
        manager = self._scheduler.kv_cache_manager
        allocate = manager.allocate_slots

        def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate(request, *args, **kwargs)
            if blocks is None and not any(request is one for one in self._scheduler.running):
                self._step.refusals += 1
            return blocks

        manager.allocate_slots = allocate_slots


def _token(rid: str, position: int) -> int:
    """The token of a request at a position, the same each time."""
    return zlib.crc32(f"{rid} {position}".encode()) % VOCAB_SIZE


def _parts(root: Any) -> Iterator[Any]:
    """``root`` and the objects of the release below it that live as long as it does."""
    seen: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop(0)
        module = type(one).__module__
        if id(one) in seen or not module.startswith("vllm.") or module.startswith(_CONSTANT):
            continue
        if type(one).__name__ == "KVCacheBlock" or "__dict__" not in dir(one):
            continue
        seen[id(one)] = one
        yield one
        for value in vars(one).values():
            waiting += value if isinstance(value, list | tuple) else [value]


def _named(parts: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    """Yield objects with a name: their class, numbered from its second object on."""
    count: dict[str, int] = {}
    for one in parts:
        name = type(one).__name__
        count[name] = count.get(name, 0) + 1
        yield (name if count[name] == 1 else f"{name}{count[name]}"), one
