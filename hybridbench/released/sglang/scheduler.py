"""The scheduler of an SGLang release, built by its own constructor around a worker without a model.

Everything between a request and the model is the release's: queue, admission, refusal, chunks,
batches, retraction, aborts, sessions, caches, pools.  The model is replaced by random tokens,
sockets and process groups by objects that are never used.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EngineConfig, PauseMode
from hybridbench.foundation.errors import ConfigError
from hybridbench.released.adapter import UNCOUNTED_CALLS, CacheWatch, Step
from hybridbench.released.sglang.accounts import TreeAccounts, slots_of
from hybridbench.released.sglang.generations import Held, generation_of
from hybridbench.released.sglang.parts import Unpinned, build_scheduler
from hybridbench.released.sglang.request_watch import TrackWatch, WindowWatch
from hybridbench.released.sglang.rust_core import (
    UNCOUNTED,
    RustCoreWatch,
    parts,
    rust_core,
)
from hybridbench.released.sglang.trees import Part, Reader, TreeWatch, reader_of, walk

# The release aborts every request whose rid starts with the given one; this mark prevents that.
_END_OF_RID: Final = "/"
_ALL_TOKENS: Final = 1 << 30
_SESSION_CACHES: Final = frozenset({"SessionAwareCache", "StreamingSession"})
# Records of the scheduler that refer to requests during a step.
_HOLDERS: Final = frozenset({"ScheduleBatch", "ModelWorkerBatch", "PrefillAdder"})


@dataclass(frozen=True)
class _Record:
    """SGLang's record of a request, as the driving loop reads it."""

    req: Any
    held: Callable[[Any], Held]

    @property
    def output_ids(self) -> Sequence[int]:
        tokens: Sequence[int] = self.req.output_ids
        return tokens

    @property
    def prompt_tokens(self) -> int:
        return len(self.req.origin_input_ids)

    @property
    def cached_tokens(self) -> int:
        tokens: int = self.req.cached_tokens
        return tokens

    @property
    def holds_state(self) -> bool:
        return bool(self.held(self.req).states)

    @property
    def end(self) -> tuple[str, str] | None:
        if not self.req.finished():
            return None
        reason = self.req.finished_reason.to_json()
        kind = reason.get("type", "abort")
        kind = kind if kind in {"length", "abort"} else "stop"
        return kind, str(reason.get("message") or "")


class SGLangScheduler:
    """Owns the release's ``Scheduler``, and gives read access to its structures."""

    package = "sglang"

    def __init__(self, config: EngineConfig, retract_every: int = 0) -> None:
        """Build it; its own test switch retracts requests every ``retract_every`` steps (0: never).

        Raises:
            ConfigError: the release is unknown, or ``config`` has an unsupported setting.
        """
        self.accounts = TreeAccounts(self)
        self.release = importlib.metadata.version(self.package)
        self._generation = generation_of(self.release)
        self._step = Step()
        self._scheduler = build_scheduler(
            config, self._generation, self._take_output, retract_every
        )
        # Batches with track buffers pin memory without checking whether there is a device.
        self._memory = Unpinned() if config.tracks_states else nullcontext()
        self._tracks_states = config.tracks_states
        self._overlaps = config.enable_overlap_schedule
        # Its event loop, which does not run, would set these.
        self._scheduler.result_queue = deque()
        self._scheduler.schedule_stream = torch.cpu.Stream()
        self._count_refusals()
        cache = self._cache()
        self.page_size = config.page_size
        kv, rows = self._scheduler.token_to_kv_pool_allocator, self._scheduler.req_to_token_pool
        # The rows of the oldest releases start at 0.
        self._rows = range(min(rows.free_slots), min(rows.free_slots) + rows.size)
        self.has_windows = type(kv).__name__ == "SWATokenToKVPoolAllocator"
        self._reader: Reader = reader_of(cache, self.window_of)
        self._rust_core = rust_core(cache)
        self.cache_name = type(cache).__name__
        if config.cache in {"radix", "swa"} and self.cache_name == "UnifiedRadixCache":
            raise ConfigError(
                f"engine.cache: sglang {self.release} has only its unified tree for such a model; "
                "use engine.cache=auto."
            )
        self.uncounted = UNCOUNTED_CALLS | {"session_tail_frees"}
        if self._rust_core is not None:
            self.cache_name += " (core in Rust)"
            self.uncounted |= UNCOUNTED
        self._io: Any = importlib.import_module("sglang.srt.managers.io_struct")
        self._sampling: Any = importlib.import_module("sglang.srt.sampling.sampling_params")
        self._req_class: type = importlib.import_module("sglang.srt.managers.schedule_batch").Req

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
        """Submit a request; None if it was refused at once."""
        sampling = self._sampling.SamplingParams(
            max_new_tokens=params.max_new_tokens,
            temperature=params.temperature,
            stop_token_ids=list(params.stop_token_ids) or None,
            ignore_eos=params.ignore_eos,
        )
        sampling.normalize(None)
        received = _message(
            self._io.TokenizedGenerateReqInput,
            rid=rid + _END_OF_RID,
            input_text="",
            input_ids=self._generation.token_ids(input_ids),
            mm_inputs=None,
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
            session_params=None if session_id is None else self._io.SessionParams(id=session_id),
            priority=priority,
            extra_key=extra_key,
        )
        self._scheduler.handle_generate_request(received)
        queue = self._scheduler.waiting_queue
        if not queue or queue[-1].rid != received.rid:
            return None
        return _Record(queue[-1], self._generation.held)

    def abort(self, rid: str) -> None:
        """Abort one request."""
        self._scheduler.abort_request(self._io.AbortReq(rid=rid + _END_OF_RID))

    def pause(self, mode: PauseMode) -> None:
        """Run nothing until ``resume``; the last of overlapped steps is processed now."""
        queue = self._scheduler.result_queue
        unprocessed = [req for batch, _ in queue for req in batch.reqs]
        self._scheduler.pause_generation(self._io.PauseGenerationReqInput(mode=mode))
        if not queue:
            self._step.reqs = unprocessed

    def resume(self) -> None:
        """Resume if paused."""
        if self.is_paused:
            self._scheduler.continue_generation(self._io.ContinueGenerationReqInput())

    @property
    def is_paused(self) -> bool:
        paused: bool = self._scheduler._engine_paused
        return paused

    def step(self) -> Step:
        """Run one iteration of the release's loop, without its idle check."""
        done, self._step = self._step, Step()
        # Requests that ended since the last iteration belong to this one.
        self._step.sent_away, self._step.reqs = done.sent_away, done.reqs
        if not self.is_paused:
            with self._memory:
                self._run()
        done, self._step = self._step, Step()
        return done

    def _run(self) -> None:
        scheduler = self._scheduler
        batch = self._generation.next_batch(scheduler)
        if batch:
            extends = batch.forward_mode.is_extend()
            self._step.mode = "extend" if extends else "decode"
            self._step.reqs += batch.reqs
            self._step.tokens = batch.extend_num_tokens if extends else len(batch.reqs)
            if extends:
                self._step.prompt_tokens = self._step.tokens
                self._step.prefilled = frozenset(map(id, batch.reqs))
            if scheduler.chunked_req is not None:
                self._step.cut = frozenset((id(scheduler.chunked_req),))
            result = scheduler.run_batch(batch)
            # The release's own methods also read this queue.
            scheduler.result_queue.append((batch.copy() if self._overlaps else batch, result))
        if scheduler.last_batch if self._overlaps else batch:
            before, result = scheduler.result_queue.popleft()
            scheduler.process_batch_result(before, result)
            self._step.reqs += [req for req in before.reqs if req not in self._step.reqs]
        scheduler.last_batch = batch

    @property
    def has_sent_away(self) -> bool:
        """Whether the next step will report the end of a request."""
        return bool(self._step.sent_away or self._step.reqs)

    # Sessions.

    @property
    def has_sessions(self) -> bool:
        """Whether sessions keep their KV between turns."""
        return self._generation.sessions is not None

    def sessions(self) -> Mapping[str, Any]:
        """The open sessions by id."""
        if not self.has_sessions:
            return {}
        found: Mapping[str, Any] = self._scheduler.session_controller.sessions
        return found

    def open_session(self, session_id: str, timeout_s: float | None) -> bool:
        """Open a session; return whether it is open."""
        asked = self._io.OpenSessionReqInput(
            capacity_of_str_len=_ALL_TOKENS,
            session_id=session_id,
            streaming=True,
            timeout=timeout_s,
        )
        self._scheduler.open_session(asked)
        return session_id in self.sessions()

    def close_session(self, session_id: str) -> None:
        """Close a session, after its current turn."""
        self._scheduler.close_session(self._io.CloseSessionReqInput(session_id=session_id))

    def reap_sessions(self) -> None:
        """Close sessions that timed out or wait to be closed, as the release does before a step."""
        if self.has_sessions:
            self._scheduler.session_controller.maybe_reap(time.monotonic())

    # Structures.

    def waiting(self) -> Sequence[Any]:
        """Requests in the queue."""
        queue: Sequence[Any] = self._scheduler.waiting_queue
        return queue

    def admitted(self) -> Sequence[Any]:
        """Requests that run, or are between two chunks of their prompt."""
        scheduler = self._scheduler
        batches = (scheduler.running_batch, scheduler.last_batch)
        reqs = [req for batch in batches if batch is not None for req in batch.reqs]
        if scheduler.chunked_req is not None:
            reqs.append(scheduler.chunked_req)
        waiting = {id(req) for req in self.waiting()}
        found = {id(req): req for req in reqs if not req.finished() and id(req) not in waiting}
        return list(found.values())

    @property
    def is_at_rest(self) -> bool:
        """Whether no batch has requests and the queue is empty."""
        scheduler = self._scheduler
        busy = scheduler.waiting_queue or scheduler.last_batch or scheduler.running_batch.reqs
        return not (busy or scheduler.chunked_req is not None)

    def free_slots(self) -> Mapping[str, tuple[range, Sequence[int]]]:
        """By pool: the usable slots, and the free ones."""
        scheduler = self._scheduler
        rows, kv = scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator
        allocators = {"kv": kv}
        if self.has_windows:
            allocators = {"kv": kv.full_attn_allocator, "swa": kv.swa_attn_allocator}
        page = self.page_size
        pools: dict[str, tuple[range, Any]] = {
            pool: (range(page, page + one.size), self._free_in(one).tolist())
            for pool, one in allocators.items()
        }
        # The other class of row pools has no states.
        if type(rows).__name__ == "HybridReqToTokenPool":
            states = range(1, 1 + rows.mamba_pool.size)
            pools["mamba"] = (states, self._generation.states(rows).tolist())
        pools["req"] = (self._rows, rows.free_slots)
        return pools

    def used_slots(self) -> tuple[int, ...]:
        """Slots of each pool that hold something."""
        return tuple(len(slots) - len(free) for slots, free in self.free_slots().values())

    def session_records(self) -> Mapping[str, Any]:
        """The record that each session keeps between turns, by session id."""
        if not self.has_sessions:
            return {}
        records: Mapping[str, Any] = self._session_cache().slots
        return records

    def held(self, record: Any) -> Held:
        """What the record of a request or a session must free."""
        return self._generation.held(record)

    def tracked_until(self, req: Any) -> int | None:
        """The length at which its track buffer last saved a state; None if it has saved none."""
        return self._generation.tracked_until(req)

    def row(self, index: int) -> Any:
        """The KV slots of a request's row."""
        return self._scheduler.req_to_token_pool.req_to_token[index]

    def window_of(self, slots: Any) -> Any:
        """The window-pool slot of each KV slot, from the release's own table; 0 if it has none."""
        return self._scheduler.token_to_kv_pool_allocator.full_to_swa_index_mapping[slots]

    def tree_parts(self) -> Iterator[Part]:
        """Return the slots that the nodes of the tree hold."""
        if self._rust_core is not None:
            return parts(self._rust_core, self.window_of, self.free_slots())
        return (part for node in walk(self._root()) for part in self._reader(node))

    def evict_all(self) -> None:
        """Make the cache evict everything unlocked, by its own code."""
        params = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache").EvictParams
        self._cache().evict(params(num_tokens=_ALL_TOKENS, swa_num_tokens=_ALL_TOKENS))

    def watch(self, counters: EngineCounters) -> CacheWatch:
        """Count the tree's changes, and what requests free or save themselves, in ``counters``."""
        tree = (
            TreeWatch(self._root, self._reader, counters, has_windows=self.has_windows)
            if self._rust_core is None
            else RustCoreWatch(self._rust_core, counters, has_windows=self.has_windows)
        )
        if self.has_windows:
            return WindowWatch(tree, self, counters)
        return TrackWatch(tree, self, counters) if self._tracks_states else tree

    def containers(self) -> dict[str, int]:
        """Length of every container of the scheduler, its cache and its sessions, by name."""
        cache = self._scheduler.tree_cache
        owners = {"scheduler": self._scheduler, "cache": cache, "tree": self._cache()}
        # Later unified trees keep their nodes in a separate object.
        core = vars(self._cache()).get("tree_core")
        owners |= {} if core is None else {"tree_core": core}
        if self.has_sessions:
            owners |= {"sessions": self._scheduler.session_controller}
            owners |= {"session_cache": self._session_cache()}
        return {
            f"{owner}.{name}": len(value)
            for owner, one in owners.items()
            for name, value in vars(one).items()
            if isinstance(value, dict | list | set | deque)
        }

    def objects(self, reported: Sequence[Any]) -> dict[str, tuple[type, int]]:
        """Classes of nodes, requests and sessions, with the number of instances that are held."""
        requests = {id(req): req for req in (*self._requests(), *reported)}
        found = {"Req": (self._req_class, len(requests)), **self._nodes(requests.values())}
        if self._generation.sessions is not None:
            session, record = (
                importlib.import_module(f"sglang.srt.{name}") for name in self._generation.sessions
            )
            named = (*self.sessions().values(), *(req.session for req in requests.values()))
            alive = {id(one) for one in named if one is not None}
            found["Session"] = (session.Session, len(alive))
            found["SessionSlot"] = (record.SessionSlot, len(self.session_records()))
        return found

    def _nodes(self, requests: Iterable[Any]) -> dict[str, tuple[type, int]]:
        """The class of nodes, with the number that the tree and ``requests`` hold.

        Empty if the nodes are not Python objects.
        """
        if self._rust_core is not None:
            return {}
        root = self._root()
        kind, nodes = type(root), {id(one) for one in (root, *walk(root))}
        # An ended request is referenced until the next batch.  It keeps alive the node that it hit,
        # and that node's former ancestors.
        for req in requests:
            for one in vars(req).values():
                while isinstance(one, kind) and id(one) not in nodes:
                    nodes.add(id(one))
                    one = one.parent  # noqa: PLW2901 - the way up
        return {kind.__name__: (kind, len(nodes))}

    def sources(self) -> tuple[str, int]:
        """SHA-256 of the release's files for queue, memory and sessions, and their number."""
        root = Path(str(importlib.import_module("sglang.srt.managers.scheduler").__file__)).parents[
            1
        ]
        files = [
            path
            for name in ("managers", "mem_cache", "session")
            for path in sorted((root / name).rglob("*.py"))
        ]
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
        return digest.hexdigest(), len(files)

    def _free_in(self, allocator: Any) -> Any:
        # The second list is for allocators that sort, which these do not; later ones lack it.
        lists = (allocator.free_pages, allocator.release_pages)
        pages = torch.cat([pages for pages in lists if pages is not None])
        return pages if self.page_size == 1 else slots_of(pages, self.page_size)

    def _cache(self) -> Any:
        """The tree, without the sessions around it."""
        cache = self._scheduler.tree_cache
        return cache.inner if type(cache).__name__ in _SESSION_CACHES else cache

    def _root(self) -> Any:
        return self._cache().root_node

    def _session_cache(self) -> Any:
        """The cache that keeps KV for sessions: a wrapper of the tree, or a part of it."""
        cache = self._scheduler.tree_cache
        return cache if type(cache).__name__ in _SESSION_CACHES else cache.session

    def _requests(self) -> Iterator[Any]:
        """Requests directly reachable from the scheduler's attributes, and the sessions' turns."""
        for value in vars(self._scheduler).values():
            yield from self._requests_in(value)
        for session in self.sessions().values():
            yield from (node.req for node in session.req_nodes.values())

    def _requests_in(self, value: Any) -> Iterator[Any]:
        if isinstance(value, self._req_class):
            yield value
        elif isinstance(value, list | tuple | set | deque):
            for one in value:
                yield from self._requests_in(one)
        elif type(value).__name__ in _HOLDERS:
            for part in vars(value).values():
                if type(part).__name__ not in _HOLDERS:
                    yield from self._requests_in(part)

    def _take_output(self, message: Any) -> None:
        """Receive a message for the release's front end; only aborts matter here."""
        if type(message).__name__ != "AbortReq":
            return
        rid = message.rid.removesuffix(_END_OF_RID)
        reason = message.finished_reason or {}
        said = reason.get("message") or message.abort_message or "aborted"
        self._step.sent_away[rid] = str(said)

    def _count_refusals(self) -> None:
        """Patch the release's ``PrefillAdder`` to count each request that it does not admit."""
        module: Any = importlib.import_module(type(self._scheduler).__mro__[1].__module__)
        adder: Any = module.PrefillAdder
        note = self._note_refusal

        class PrefillAdder(adder):  # type: ignore[misc]
            def add_one_req(self, req: Any, *args: Any, **kwargs: Any) -> Any:
                result = super().add_one_req(req, *args, **kwargs)
                if not any(one is req for one in self.can_run_list):
                    note()
                return result

        module.PrefillAdder = PrefillAdder

    def _note_refusal(self) -> None:
        self._step.refusals += 1


def _message(kind: Any, **fields: Any) -> Any:
    """Build a message with ``fields``; other required fields are None."""
    named = inspect.signature(kind).parameters
    required = {name: None for name, one in named.items() if one.default is one.empty}
    return kind(**{**required, **fields})
