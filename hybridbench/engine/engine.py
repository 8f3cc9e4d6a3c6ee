"""The engine's interface: submit, step, abort, disconnect, and queries between steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from hybridbench.engine.assembly import assemble
from hybridbench.engine.cache.kv_events import KvEvent
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.containers import SharedContainers, long_containers
from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.cuda_graph_runner import GraphRecorder
from hybridbench.engine.event_loop import EventLoop, EventLoopNormal, EventLoopOverlap
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.front_end import FrontEnd
from hybridbench.engine.kernels.dispatch import Kernels
from hybridbench.engine.lineage import Passed
from hybridbench.engine.liveness import Liveness, liveness_of
from hybridbench.engine.memory.storage_controller import StorageIO
from hybridbench.engine.memory.transfers import Transfers
from hybridbench.engine.model_runner import LanguageModel
from hybridbench.engine.req import Req, Session
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import InvariantViolation
from hybridbench.engine.scheduler.invariants import (
    InvariantChecker,
    InvariantError,
    malformed_answers,
    unanswered,
)
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.pool_stats import PoolStats
from hybridbench.engine.scheduler.schedule_batch import ScheduleBatch
from hybridbench.engine.scheduler.scheduler import Scheduler
from hybridbench.engine.speculative.drafter import DRAFTERS, Drafter
from hybridbench.engine.steady import SteadyDetector, StepLoad
from hybridbench.foundation.clock import Clock, SystemClock
from hybridbench.foundation.engine_config import EngineConfig, PauseMode

# Attributes that ``Engine.containers`` reports under separate names.
_COUNTED_BELOW: Final = (
    "Engine._pending_events",
    "FrontEnd._states",
    "KvEventRecorder.log",
    "Scheduler._abort_requested",
    "Scheduler.running",
    "Scheduler.waiting_queue",
    "SessionController.sessions",
    "SteadyDetector._shapes",
    "StreamingSession.slots",
)


class Engine:
    """One model, its pools, its cache and its scheduler.

    Call every method from the same thread; only ``step`` runs the model.  ``submit``, ``abort`` and
    ``disconnect`` only record the call; the next step acts on it.
    """

    def __init__(  # noqa: PLR0913 - each replaceable part is a keyword
        self,
        config: EngineConfig,
        *,
        clock: Clock | None = None,
        model: LanguageModel | None = None,
        on_kv_events: Callable[[list[KvEvent]], None] | None = None,
        drafter: Drafter | None = None,
        kernels: Kernels | None = None,
        transfers: Transfers | None = None,
        storage_io: StorageIO | None = None,
        recorder: GraphRecorder | None = None,
    ) -> None:
        """Build or load the model that ``config`` names, unless ``model`` is given.

        All pools are allocated and written here, so the process does not grow as they are used.

        Args:
            config: sizes, policies, and the names of model and device.
            clock: replaces the system's clock.
            model: replaces the model that ``config`` names.
            on_kv_events: called after each step with the KV blocks that the cache stored and
                removed, if ``config`` enables this.
            drafter: replaces the one that ``config.speculative_algorithm`` names.
            kernels: replace the device's kernels.
            transfers: replaces the thread that copies between device and host.
            storage_io: replaces the threads that access the storage behind the host tier.
            recorder: replaces the device's CUDA graphs.

        Raises:
            ConfigError: the sizes, the model's name or its files are invalid.
        """
        self.config = config
        self.counters = EngineCounters()
        self._clock = clock if clock is not None else SystemClock()
        parts = assemble(config, model, self._clock, kernels, transfers, storage_io, recorder)
        self.model_config = parts.model_config
        self.pools = parts.pools
        self._runner = parts.runner
        self._on_kv_events = on_kv_events
        self._front_end = FrontEnd(self.model_config.vocab_size, config.max_request_len)
        self._pending_events: list[EngineEvent] = []
        if config.speculative_algorithm is None:
            drafter = None
        elif drafter is None:
            drafter = DRAFTERS[config.speculative_algorithm]()
        self.scheduler = Scheduler(config, parts.pools, self.counters, drafter)
        loop = EventLoopOverlap if config.enable_overlap_schedule else EventLoopNormal
        self._loop: EventLoop = loop(self.scheduler, parts.runner, parts.pools.timings)
        self._invariants = InvariantChecker(parts.pools, config)
        self._steady = SteadyDetector(parts.pools.sizes())
        self._shared = SharedContainers()
        self.max_running_requests_seen = 0
        # The findings of the last check that found something new.
        self.violations: list[InvariantViolation] = []
        self.note = parts.note

    def submit(  # noqa: PLR0913 - the parameters of similar engines
        self,
        rid: str,
        input_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        truncate: bool = False,
        payload: bytes = b"",
        priority: int | None = None,
        session_id: str | None = None,
        extra_key: str | None = None,
    ) -> None:
        """Queue a request; an invalid one is rejected by an event of the next step.

        Args:
            rid: an id not in use by a live request.
            input_ids: the prompt.
            sampling_params: how to choose tokens, and when to stop.
            truncate: keep only the first tokens of a prompt that is too long for its
                ``max_new_tokens``, instead of rejecting it.
            payload: data that accompanies the prompt, such as image features; its hash replaces
                the prompt's first tokens, and it is freed with the request.
            priority: its rank, if the engine schedules by priority; None means
                ``default_priority_value``.
            session_id: the session whose next turn this is; ``input_ids`` are then appended to the
                earlier conversation, and ``truncate`` cuts only them.
            extra_key: a tenant or an adapter; requests share cached prefixes only within one key.

        If the queue is full, the request is refused, and the next step reports it as aborted.

        Raises:
            DuplicateRequestError: ``rid`` belongs to a request that has not ended.
        """
        self._front_end.refuse_duplicate(rid)
        self.counters.requests_submitted += 1
        said = self._said_in(session_id)
        prompt = [*said, *input_ids]
        now_s = self._clock.monotonic_s()
        # Before validation: the client has an entry whether or not its request is valid.
        self._front_end.open(rid, now_s)
        longest = self.config.max_request_len - sampling_params.max_new_tokens
        if truncate and len(prompt) > longest > len(said):
            prompt = prompt[:longest]
            self.counters.requests_truncated += 1
        fault = self._front_end.fault_of(prompt, sampling_params)
        if session_id is not None:
            fault = self._fault_of_turn(session_id, payload) or fault
            self.counters.session_rejected_turns += bool(fault)
        if fault:
            self._reject(rid, fault)
            return
        req = Req(
            rid,
            prompt,
            sampling_params,
            arrival=self.counters.requests_submitted,
            eos_token_ids=self.model_config.eos_token_ids,
        )
        req.extra_key = extra_key
        req.submitted_s = req.last_heard_s = now_s
        req.priority = self.config.default_priority_value if priority is None else priority
        if payload:
            req.attach_payload(payload, self.model_config.vocab_size)
        self._front_end.accept(req)
        if session_id is not None:
            req.passed |= Passed.IN_SESSION
            self.scheduler.sessions.begin_req(session_id, req)
        self.scheduler.add(req)

    def open_session(self, session_id: str, *, timeout_s: float | None = None) -> bool:
        """Open a session, whose turns keep their KV and state; False if the id is taken.

        It closes after ``timeout_s`` without a turn; None disables the time-out.
        """
        return self.scheduler.sessions.open(session_id, timeout_s)

    def close_session(self, session_id: str) -> bool:
        """Close a session and free what it holds; False if there is no such session.

        A turn in progress finishes normally first.
        """
        was_open = self.scheduler.sessions.close(session_id)
        self.pools.count_cache_work(self.counters)
        return was_open

    def reap_sessions(self) -> float | None:
        """Close timed-out sessions; return the seconds until the next may time out, or None.

        Every step does this; a caller that does not step an idle engine must call it in time.
        """
        self.scheduler.sessions.maybe_reap()
        self.pools.count_cache_work(self.counters)
        return self.scheduler.sessions.seconds_to_reap()

    def abort(self, rid: str) -> bool:
        """End a request in the next step, which reports it; False if there is no such request."""
        req = self._front_end.find(rid)
        if req is None:
            return False
        self.scheduler.request_abort(req, "aborted by its client")
        return True

    def abort_all(self) -> int:
        """End every request in the next step; return how many were not being aborted already."""
        return self.scheduler.request_abort_all("aborted with all others")

    def pause_generation(self, mode: PauseMode = "abort") -> None:
        """Run nothing until ``continue_generation``; requests submitted until then wait.

        Args:
            mode: what happens to the requests: "abort" ends all, "retract" returns the running
                ones to the queue, "in_place" lets them keep what they hold.

        Source: SGLang's modes, which serve to change the weights of a running engine.
        """
        if mode == "abort":
            self.abort_all()
        self.scheduler.pause(retract=mode == "retract")
        self.pools.count_cache_work(self.counters)

    def continue_generation(self) -> None:
        """Resume after ``pause_generation``; without a pause, do nothing."""
        self.scheduler.resume()

    def disconnect(self, rid: str) -> bool:
        """Abort and forget the request of a client that left; no later event names ``rid``."""
        req = self._front_end.find(rid)
        if req is None:
            return False
        self.counters.disconnects += 1
        # In this order: once the entry is gone, the request can no longer be found by its id.
        self.scheduler.request_abort(req, "its client disconnected")
        self._front_end.drop(rid)
        return True

    def find(self, rid: str) -> Req | None:
        """The live request ``rid``, read-only; None if there is none."""
        return self._front_end.find(rid)

    def step(self) -> list[EngineEvent]:
        """Run one step: settle aborts, run a prefill or decode batch, return the events."""
        outcome = StepOutcome()
        self.scheduler.sessions.maybe_reap()
        step_began_s = self.pools.timings.now_s()
        batch = self._loop.run(outcome)
        self._note_step(batch)
        self._check(batch, outcome, step_began_s)
        self._publish_kv_events()
        events = self._tell(outcome)
        self._check_answers(events)
        return events

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling_params: SamplingParams
    ) -> list[list[int]]:
        """Run ``prompts`` to completion and return the output tokens of each, in order.

        Raises:
            ValueError: the engine rejected or aborted one of them; the message gives the reason.
        """
        rids = [f"generate-{self.counters.requests_submitted}-{i}" for i in range(len(prompts))]
        for rid, prompt in zip(rids, prompts, strict=True):
            self.submit(rid, prompt, sampling_params)
        outputs: dict[str, list[int]] = {}
        while self.has_work:
            for event in self.step():
                if event.kind in (EventKind.REJECTED, EventKind.ABORTED):
                    raise ValueError(f"request {event.rid}: {event.reason}")
                if event.kind is EventKind.FINISHED:
                    outputs[event.rid] = list(event.output_ids)
        return [outputs[rid] for rid in rids]

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do or to report."""
        return self.scheduler.has_work or bool(self._pending_events)

    @property
    def is_idle(self) -> bool:
        """Whether no request is waiting or running, and no result or transfer is outstanding."""
        return not (self.scheduler.has_requests or self.scheduler.has_transfers)

    @property
    def is_paused(self) -> bool:
        """Whether ``pause_generation`` was called and ``continue_generation`` was not."""
        return self.scheduler.is_paused

    @property
    def is_steady(self) -> bool:
        """Whether the warm-up is over; see :class:`SteadyDetector`."""
        return self._steady.is_steady

    @property
    def host_failure(self) -> str:
        """The error of the first failed copy to or from the host; empty if none failed.

        An error of the storage itself does not count.
        """
        host_tier = self.pools.host_tier
        if host_tier is None:
            return ""
        # Only a host tier has storage behind it.
        storage_tier = self.pools.storage_tier
        storage = None if storage_tier is None else storage_tier.storage_controller
        return host_tier.cache_controller.failure or ("" if storage is None else storage.failure)

    @property
    def steady_reason(self) -> str:
        """Why the engine counts as steady: "evicting" or "unfilled"; empty before it does."""
        return self._steady.reason

    @property
    def graphs_note(self) -> str:
        """A sentence about the CUDA graphs, for a run to print; empty without graphs."""
        return self._runner.graphs_note

    @property
    def running_requests(self) -> int:
        """Requests in the running batch, plus the one between two prefill chunks."""
        return len(self.scheduler.running) + (self.scheduler.chunked_req is not None)

    @property
    def waiting_requests(self) -> int:
        """Requests waiting for admission."""
        return len(self.scheduler.waiting_queue)

    def flush_cache(self) -> bool:
        """Empty the prefix cache; return False, and do nothing, unless the engine is idle.

        Waiting requests of a paused engine do not matter, since they hold nothing.  Sessions that
        hold KV lock a part of the tree, so the flush is refused until they are closed.  Slots are
        freed one by one through the allocators, because clearing the allocators would hide lost
        slots.
        """
        nobody_reads = self.is_idle or self.scheduler.only_waits
        if not nobody_reads or self.pools.sessions.any_holding_kv():
            return False
        self.pools.empty_tree()
        self.counters.flushes += 1
        self.pools.count_cache_work(self.counters)
        return True

    @property
    def vocab_size(self) -> int:
        """Token ids are less than this."""
        return self.model_config.vocab_size

    def held_by_waiting(self) -> dict[str, dict[str, int]]:
        """Slots held by waiting requests, by rid and pool; requests that hold none are left out."""
        pools = self.pools
        return {
            req.rid: pools.held_slots(req.kv)
            for req in self.scheduler.waiting_queue
            if not req.kv.is_empty
        }

    def removals(self) -> tuple[int, int]:
        """Return how many objects of each class in ``REMOVED_CLASSES`` have been removed so far.

        The counts are exact even in the middle of a step.
        """
        # The counters copy the cache's own counts only when the step ends.
        events = self.pools.tree_cache.events
        nodes = events.evict_leaf + events.evict_cascade + events.host_evictions
        return nodes, self.counters.finishes

    def objections(self) -> dict[str, int]:
        """Slots, by pool, that owner checks would have refused to free or transfer."""
        return self.pools.objections()

    def pool_stats(self) -> dict[str, PoolStats]:
        """Where the slots of each pool ("kv", "req", "mamba", "swa", ...) are; O(requests)."""
        return self._invariants.stats(self.scheduler.admitted(), self.scheduler.waiting_queue)

    def check_invariants(self, idle: bool) -> list[InvariantViolation]:
        """Check the invariants; with ``idle`` also those of an idle engine, and the tree."""
        found = self._violations(idle=idle, name_missing=True)
        if idle:
            found += self._invariants.check_tree()
            # An engine with work may still have refusals and aborts to report.
            found += [] if self.has_work else unanswered(self._front_end.rids())
        return found

    def audit(self) -> list[InvariantViolation]:
        """Compare every slot of every pool with its holders and the ledger."""
        return self._invariants.audit(self.scheduler.admitted(), self.scheduler.waiting_queue)

    def audit_rows(self) -> list[InvariantViolation]:
        """Check that the KV that requests and sessions read is theirs, or the tree's and locked."""
        return self._invariants.audit_rows(self.scheduler.admitted())

    def last_owner(self, pool: str, slot: int) -> str:
        """The holder of ``slot`` according to the ledger: REQ, TREE, SESSION, ..."""
        return self._invariants.last_owner(pool, slot)

    def containers(self) -> dict[str, int]:
        """Return the number of entries of every container that could grow without bound.

        Containers of modules, classes and functions are those of the last ``find_containers``.
        """
        scheduler, tree_cache = self.scheduler, self.pools.tree_cache
        others = long_containers(self)
        for name in _COUNTED_BELOW:
            others.pop(name, None)
        return {
            **others,
            **self._shared.long(),
            "front_end": len(self._front_end),
            "pending_events": len(self._pending_events),
            "waiting_queue": len(scheduler.waiting_queue),
            "running": len(scheduler.running),
            "abort_requested": scheduler.aborts_pending,
            "tree_nodes": tree_cache.node_count(),
            "kv_events": len(tree_cache.kv_events),
            "step_shapes": self._steady.shapes_seen,
            "sessions": len(scheduler.sessions),
            "session_slots": len(self.pools.sessions.slots),
        }

    def find_containers(self) -> None:
        """Find the containers of modules, classes and functions; takes milliseconds."""
        self._shared.find()

    def timings(self) -> dict[str, float]:
        """Cumulative seconds by kind of work, such as match_s, schedule_s and forward_s."""
        return self.pools.timings.seconds()

    def reference_counted_classes(self) -> dict[str, tuple[type, int]]:
        """Classes whose instances are freed by reference count, and how many are reachable now."""
        scheduler = self.scheduler
        reqs = [*scheduler.admitted(), *scheduler.waiting_queue, *self._front_end.requests()]
        # A batch keeps its finished requests until its late result has arrived.
        reqs += scheduler.outrun()
        return {
            "TreeNode": (TreeNode, self.pools.tree_cache.live_node_count()),
            "Req": (Req, len(set(map(id, reqs)))),
            "Session": (Session, len(scheduler.sessions)),
        }

    def liveness(self) -> Liveness:
        """Requests that live too long or have no client; O(requests)."""
        scheduler = self.scheduler
        now_s = self._clock.monotonic_s()
        return liveness_of(scheduler.admitted(), scheduler.waiting_queue, self._front_end, now_s)

    def _said_in(self, session_id: str | None) -> list[int]:
        """The earlier tokens of a session; empty if there is no such session."""
        session = None if session_id is None else self.scheduler.sessions.get(session_id)
        return [] if session is None else session.tokens

    def _fault_of_turn(self, session_id: str, payload: bytes) -> str:
        """Why a session cannot accept a turn, as one sentence; empty if it can."""
        if payload:
            # Its hash would change the first tokens of the earlier conversation.
            return "a session turn cannot carry a payload; send the request without session_id"
        return self.scheduler.sessions.fault_of_turn(session_id)

    def _reject(self, rid: str, fault: str) -> None:
        """Let the next step report why a request is refused, and drop its client's entry."""
        self.counters.requests_rejected += 1
        self._pending_events.append(EngineEvent(EventKind.REJECTED, rid, reason=fault))
        self._front_end.forget_unserved(rid)

    def _note_step(self, batch: ScheduleBatch | None) -> None:
        counters = self.counters
        counters.steps += 1
        if batch is None:
            counters.idle_steps += 1
        self.pools.count_cache_work(counters)
        counters.graph_replays = self._runner.graph_replays
        self.max_running_requests_seen = max(self.max_running_requests_seen, self.running_requests)
        if self._steady.is_steady:
            return
        self._steady.observe(
            StepLoad(
                mode="idle" if batch is None else batch.forward.mode,
                tokens=0 if batch is None else len(batch.forward.input_ids),
                requests=0 if batch is None else len(batch.reqs),
                used=self.pools.used(),
                evictions=counters.evict_internal_state
                + counters.nodes_evicted
                + counters.host_stays,
                finished=counters.finishes,
            )
        )

    def _publish_kv_events(self) -> None:
        """Publish what the cache stored and removed in this step, if there is a subscriber."""
        if not self.config.enable_kv_cache_events:
            return
        if self._on_kv_events is None:
            # The garbage collector counts event objects, at page size 1 one per token.  Building
            # them without a subscriber would trigger full collections for nothing.
            self.counters.kv_events_published += self.pools.tree_cache.kv_events.drop()
            return
        events = self.pools.tree_cache.take_events()
        self.counters.kv_events_published += len(events)
        if events:
            self._on_kv_events(events)

    def _violations(self, *, idle: bool, name_missing: bool) -> list[InvariantViolation]:
        return self._invariants.check(
            self.scheduler.admitted(),
            self.scheduler.waiting_queue,
            idle=idle,
            name_missing=name_missing,
        )

    def _check(
        self, batch: ScheduleBatch | None, outcome: StepOutcome, step_began_s: float
    ) -> None:
        """Run the configured checks after a step that began at ``step_began_s``."""
        level = self.config.check_level
        if level == "off":
            return
        timings = self.pools.timings
        began_s = timings.cpu_s()
        ended = (*outcome.finished, *outcome.aborted)
        scheduler = self.scheduler
        found = self._invariants.check_step(
            batch, scheduler.waiting_queue, ended, scheduler.passed_over, step_began_s
        )
        idle = self.is_idle
        if idle or level == "busy":
            self._check_sums(idle, found)
        else:
            self._note_violations(found, lambda: found)
        timings.check_s += timings.cpu_s() - began_s

    def _check_answers(self, events: Sequence[EngineEvent]) -> None:
        """Check the events about to be returned, unless checks are off."""
        if self.config.check_level != "off":
            found = malformed_answers(events)
            self._note_violations(found, lambda: found)

    def _check_sums(self, idle: bool, of_step: list[InvariantViolation]) -> None:
        """Check the pools' sums in addition to ``of_step``; checking the tree would be too slow."""

        def check(*, name_missing: bool) -> list[InvariantViolation]:
            of_pools = self._violations(idle=idle, name_missing=name_missing)
            return list(dict.fromkeys((*of_step, *of_pools)))

        self._note_violations(check(name_missing=False), partial(check, name_missing=True))

    def _note_violations(
        self, found: list[InvariantViolation], named: Callable[[], list[InvariantViolation]]
    ) -> None:
        """Count the violations ``found``; if any is new, keep the result of ``named``."""
        if not found:
            return
        self.counters.invariant_violations += len(found)
        # Slots are named once, when they go missing, not again in every later step.
        known = {(old.kind, old.pool, old.count) for old in self.violations}
        if any((new.kind, new.pool, new.count) not in known for new in found):
            self.violations = named()
        if self.config.check_fatal:
            raise InvariantError("; ".join(violation.message for violation in self.violations))

    def _tell(self, outcome: StepOutcome) -> list[EngineEvent]:
        events, self._pending_events = self._pending_events, []
        front_end = self._front_end
        now_s = self._clock.monotonic_s()
        for req in outcome.admitted:
            req.last_heard_s = now_s
            events += front_end.admitted(req)
        events += front_end.produced(outcome.produced, now_s)
        for req in outcome.finished:
            events += front_end.ended(req, EventKind.FINISHED)
        for req in outcome.aborted:
            events += front_end.ended(req, EventKind.ABORTED)
        return events
