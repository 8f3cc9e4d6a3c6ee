"""The engine as others use it: submit, step, abort, disconnect, and look inside between steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridbench.engine.assembly import assemble
from hybridbench.engine.cache.kv_events import KvEvent
from hybridbench.engine.cache.tree_node import TreeNode
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
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import InvariantViolation
from hybridbench.engine.scheduler.invariants import InvariantChecker, InvariantError
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.pool_stats import PoolStats
from hybridbench.engine.scheduler.schedule_batch import ScheduleBatch
from hybridbench.engine.scheduler.scheduler import Scheduler
from hybridbench.engine.speculative.drafter import DRAFTERS, Drafter
from hybridbench.engine.steady import SteadyDetector, StepLoad
from hybridbench.foundation.clock import Clock, SystemClock
from hybridbench.foundation.engine_config import EngineConfig, PauseMode


class Engine:
    """One model, its pools, its cache and its scheduler.

    Every method is called from one thread, and none but ``step`` runs the model.  ``submit``,
    ``abort`` and ``disconnect`` only note what is wanted: the next step acts on it.
    """

    def __init__(  # noqa: PLR0913 - the parts that stand in for its own are keywords
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
        """Builds or loads the model that ``config`` names, unless ``model`` is given.

        ``drafter`` stands in for the one that ``config.speculative_algorithm`` names,
        ``kernels`` for those of the device, ``transfers`` for the thread of the host tier,
        ``storage_io`` for those of the storage behind it, and ``recorder`` for the device's CUDA
        graphs.

        ``on_kv_events`` is told after each step which KV blocks the cache stored and removed, if
        ``config`` enables that.

        All pools are allocated and written here, so the process does not grow with their use.

        Raises:
            ConfigError: the sizes, the model's name or its files cannot be.
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
        self._invariants = InvariantChecker(parts.pools)
        self._steady = SteadyDetector(parts.pools.sizes())
        self.max_running_requests_seen = 0
        # What a step's check found when it last found something new.
        self.violations: list[InvariantViolation] = []
        self.note = parts.note

    def submit(  # noqa: PLR0913 - the field's call shape
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
        """Queue a request; what cannot be served is rejected by an event of the next step.

        Args:
            rid: an id that no live request has.
            input_ids: the prompt.
            sampling_params: how to choose tokens, and when to stop.
            truncate: keep only the first tokens of a prompt that is too long for its
                ``max_new_tokens``, instead of rejecting it.
            payload: what comes with the prompt, such as image features; its hash takes the place
                of the prompt's first tokens, and it is gone with the request.
            priority: whose turn comes first, if the engine schedules by priority; None is its
                ``default_priority_value``.
            session_id: the session whose next turn this is; ``input_ids`` are then appended to what
                was said in it before, and ``truncate`` cuts nothing but them.
            extra_key: a tenant or an adapter, which shares no cached prefix with another.

        A full queue refuses somebody, which the next step tells as an abort.

        Raises:
            DuplicateRequestError: ``rid`` belongs to a request that has not ended.
        """
        self._front_end.refuse_duplicate(rid)
        self.counters.requests_submitted += 1
        said = self._said_in(session_id)
        prompt = [*said, *input_ids]
        now_s = self._clock.monotonic_s()
        # Before validation: whatever becomes of the request, its client has an entry now.
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
        """Open a session, whose turns keep their KV and state; False if there is one of that name.

        ``timeout_s`` closes it when it has had no turn for so long; None never does.
        """
        return self.scheduler.sessions.open(session_id, timeout_s)

    def close_session(self, session_id: str) -> bool:
        """Close a session and free what it holds; False if there is none of that name.

        With a turn under way, that one still ends as it would, and the session is closed then.
        """
        return self.scheduler.sessions.close(session_id)

    def reap_sessions(self) -> float | None:
        """Close sessions that timed out; seconds until the next may, None without any.

        Every step does so; a caller that does not step an idle engine calls this in time.
        """
        self.scheduler.sessions.maybe_reap()
        return self.scheduler.sessions.seconds_to_reap()

    def abort(self, rid: str) -> bool:
        """Ask that a request ends with the next step, which says so; False if there is none."""
        req = self._front_end.find(rid)
        if req is None:
            return False
        self.scheduler.request_abort(req, "aborted by its client")
        return True

    def abort_all(self) -> int:
        """Ask that every request ends with the next step; how many had not been asked before."""
        return self.scheduler.request_abort_all("aborted with all others")

    def pause_generation(self, mode: PauseMode = "abort") -> None:
        """Run nothing until ``continue_generation``; what is submitted meanwhile waits.

        Args:
            mode: what becomes of the requests: "abort" ends all, "retract" sends those that run
                back to the queue, "in_place" lets them keep what they hold.

        Source: SGLang's modes, made for changing the weights of a running engine.
        """
        if mode == "abort":
            self.abort_all()
        self.scheduler.pause(retract=mode == "retract")

    def continue_generation(self) -> None:
        """Go on after ``pause_generation``; without a pause nothing happens."""
        self.scheduler.resume()

    def disconnect(self, rid: str) -> bool:
        """The client has left: abort its request and forget it; no further event names ``rid``."""
        req = self._front_end.find(rid)
        if req is None:
            return False
        self.counters.disconnects += 1
        # In this order: once the entry is gone, nobody finds the request by its id any more.
        self.scheduler.request_abort(req, "its client disconnected")
        self._front_end.drop(rid)
        return True

    def find(self, rid: str) -> Req | None:
        """A live request, to be read only; None if there is none of that id."""
        return self._front_end.find(rid)

    def step(self) -> list[EngineEvent]:
        """One step: settle aborts, run a prefill or one token for all, tell what happened."""
        outcome = StepOutcome()
        self.scheduler.sessions.maybe_reap()
        batch = self._loop.run(outcome)
        self._note_step(batch)
        self._check()
        self._publish_kv_events()
        return self._tell(outcome)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling_params: SamplingParams
    ) -> list[list[int]]:
        """Run ``prompts`` to their end and return the output tokens of each, in order.

        Raises:
            ValueError: the engine rejected or gave up one of them; the sentence says why.
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
        """Whether a step has anything to do or to tell."""
        return self.scheduler.has_work or bool(self._pending_events)

    @property
    def is_idle(self) -> bool:
        """Whether no request is waiting or running, and no result or transfer outstanding."""
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
    def steady_reason(self) -> str:
        """Why it counts as steady: "evicting" or "unfilled"; empty before it does."""
        return self._steady.reason

    @property
    def graphs_note(self) -> str:
        """One sentence on recorded decode steps that a run should print; empty without any."""
        return self._runner.graphs_note

    @property
    def running_requests(self) -> int:
        """Requests in the running batch, and the one between chunks."""
        return len(self.scheduler.running) + (self.scheduler.chunked_req is not None)

    @property
    def waiting_requests(self) -> int:
        """Requests that are not admitted."""
        return len(self.scheduler.waiting_queue)

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False, and nothing done, unless the engine is idle.

        While it is paused requests may wait, since they hold nothing.  What sessions hold pins a
        part of the tree, so that it also waits for them to be closed.  Slots go back one by one
        through the allocators.  Those are not cleared: that would hide what has been lost.
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
        """Token ids are below it."""
        return self.model_config.vocab_size

    def held_by_waiting(self) -> dict[str, dict[str, int]]:
        """By rid of the waiting requests that hold anything: slots by pool, only pools with any."""
        pools = self.pools
        return {
            req.rid: pools.held_slots(req.kv)
            for req in self.scheduler.waiting_queue
            if not req.kv.is_empty
        }

    def removals(self) -> tuple[int, int]:
        """Objects of each class in ``REMOVED_CLASSES`` that have left their structure so far, as it
        stands in the middle of a step.
        """
        # The counters take the cache's own counts over when the step ends.
        events = self.pools.tree_cache.events
        return events.evict_leaf + events.evict_cascade, self.counters.finishes

    def objections(self) -> dict[str, int]:
        """By pool: slots that allocators which check no owner should have refused to take back."""
        return self.pools.objections()

    def pool_stats(self) -> dict[str, PoolStats]:
        """Where the slots of "kv", "req" and, on a hybrid model, "mamba" are; O(requests)."""
        return self._invariants.stats(self.scheduler.admitted(), self.scheduler.waiting_queue)

    def check_invariants(self, idle: bool) -> list[InvariantViolation]:
        """The laws, now; with ``idle`` also those of an engine without requests, and the tree's."""
        found = self._violations(idle=idle, name_missing=True)
        return found + self._invariants.check_tree() if idle else found

    def audit(self) -> list[InvariantViolation]:
        """Every slot of every pool against its holders and the ledger; walks all of them."""
        return self._invariants.audit(self.scheduler.admitted(), self.scheduler.waiting_queue)

    def last_owner(self, pool: str, slot: int) -> str:
        """Whom the ledger names as the holder of ``slot``: REQ, TREE, SESSION, ..."""
        return self._invariants.last_owner(pool, slot)

    def containers(self) -> dict[str, int]:
        """Number of entries of everything here that could grow without bound."""
        scheduler, tree_cache = self.scheduler, self.pools.tree_cache
        return {
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

    def timings(self) -> dict[str, float]:
        """Cumulative seconds by kind of work, such as match_s, schedule_s and forward_s."""
        return self.pools.timings.seconds()

    def reference_counted_classes(self) -> dict[str, tuple[type, int]]:
        """Classes whose instances die by reference count, and how many are reachable now."""
        scheduler = self.scheduler
        reqs = [*scheduler.admitted(), *scheduler.waiting_queue, *self._front_end.requests()]
        # Until its late result has come, a batch remembers a request that is over.
        reqs += scheduler.outrun()
        return {
            "TreeNode": (TreeNode, self.pools.tree_cache.live_node_count()),
            "Req": (Req, len(set(map(id, reqs)))),
        }

    def liveness(self) -> Liveness:
        """Requests that live too long, or for nobody; O(requests)."""
        scheduler = self.scheduler
        now_s = self._clock.monotonic_s()
        return liveness_of(scheduler.admitted(), scheduler.waiting_queue, self._front_end, now_s)

    def _said_in(self, session_id: str | None) -> list[int]:
        """What was said in a session before; nothing if there is none of that name."""
        session = None if session_id is None else self.scheduler.sessions.get(session_id)
        return [] if session is None else session.tokens

    def _fault_of_turn(self, session_id: str, payload: bytes) -> str:
        """Why a session cannot take a turn, as one sentence; empty if it can."""
        if payload:
            # Its hash would change the first tokens of what was said before.
            return "a turn of a session brings no payload; send it without session_id"
        return self.scheduler.sessions.fault_of_turn(session_id)

    def _reject(self, rid: str, fault: str) -> None:
        """Say with the next step why a request is refused, and forget who waited for it."""
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
        """Hand on what the cache stored and removed in this step, if anybody wants to know."""
        if not self.config.enable_kv_cache_events:
            return
        if self._on_kv_events is None:
            # An event holds objects that the garbage collector counts, one for each token at page
            # size 1: made for nobody, they would start full collections.
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

    def _check(self) -> None:
        """What the configuration wants to be checked after this step."""
        level = self.config.check_level
        idle = self.is_idle
        if level == "off" or (level == "idle" and not idle):
            return
        timings = self.pools.timings
        began_s = timings.cpu_s()
        self._check_sums(idle)
        timings.check_s += timings.cpu_s() - began_s

    def _check_sums(self, idle: bool) -> None:
        """The sums of the pools; the tree's own check would cost too much here."""
        found = self._violations(idle=idle, name_missing=False)
        if not found:
            return
        self.counters.invariant_violations += len(found)
        # Slots are named once, when they go missing, and not again in every step after that.
        known = {(old.kind, old.pool, old.count) for old in self.violations}
        if any((new.kind, new.pool, new.count) not in known for new in found):
            self.violations = self._violations(idle=idle, name_missing=True)
        if self.config.check_fatal:
            raise InvariantError("; ".join(violation.message for violation in self.violations))

    def _tell(self, outcome: StepOutcome) -> list[EngineEvent]:
        events, self._pending_events = self._pending_events, []
        front_end = self._front_end
        now_s = self._clock.monotonic_s()
        for req in outcome.admitted:
            req.last_heard_s = now_s
            events += front_end.admitted(req)
        for req in outcome.produced:
            req.last_heard_s = now_s
        events += front_end.produced(outcome.produced, now_s)
        for req in outcome.finished:
            events += front_end.ended(req, EventKind.FINISHED)
        for req in outcome.aborted:
            events += front_end.ended(req, EventKind.ABORTED)
        return events
