"""A released engine without its model, with the interface that the worker expects.

The release's own code schedules, admits, refuses, retracts, aborts, caches and evicts.  Events and
counters are derived from outside, by observing its effects.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.front_end import DuplicateRequestError
from hybridbench.engine.liveness import Liveness
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import InvariantViolation
from hybridbench.engine.scheduler.pool_stats import PoolStats
from hybridbench.engine.steady import SteadyDetector, StepLoad
from hybridbench.foundation.engine_config import EngineConfig, PauseMode
from hybridbench.foundation.errors import UsageError
from hybridbench.released.adapter import VOCAB_SIZE, DrivenScheduler, Record, Step
from hybridbench.released.books import Books

_LONGEST_NAP_S = 0.5
_IDLE_NAP_S = 0.001


@dataclass(slots=True)
class _Request:
    """One request from its submission to its end.

    ``record`` is None if the release refused the request on submission.  ``stage`` is "queued",
    "prefill" or "decode"; ``aborted_in`` is its stage when it was aborted, "" before that.
    """

    rid: str
    submitted_s: float
    record: Record | None
    session_id: str | None = None
    has_client: bool = True
    aborted_in: str = ""
    stage: str = "queued"
    was_admitted: bool = False
    first_token_s: float | None = None
    last_heard_s: float = 0.0
    itl_s: list[float] = field(default_factory=list)

    @property
    def output_ids(self) -> Sequence[int]:
        return () if self.record is None else self.record.output_ids

    @property
    def logprobs(self) -> None:
        """None: there is no model."""


class ReleasedEngine:
    """Owns the release's scheduler, and the table of requests that have not ended."""

    def __init__(self, config: EngineConfig, scheduler: DrivenScheduler) -> None:
        self.config = config
        self.counters = EngineCounters()
        self.max_running_requests_seen = 0
        self.violations: list[InvariantViolation] = []
        self._scheduler = scheduler
        self._books = Books(scheduler.accounts)
        self._cache = scheduler.watch(self.counters)
        self._requests: dict[str, _Request] = {}
        self._closing: set[str] = set()
        self._schedule_s = 0.0
        sizes = tuple(len(slots) for slots, _ in scheduler.accounts.free_slots().values())
        self._steady = SteadyDetector(sizes)
        # Sentinels of lists, for example, which exist outside the tree from the start.
        self._beside = _live_instances(scheduler.objects(()))

    # Recorded in the run's manifest.

    @property
    def versions(self) -> Mapping[str, str]:
        """Version of the release's package, by its name."""
        return {self._scheduler.package: self._scheduler.release}

    @property
    def model(self) -> str:
        """The model's name without the release, so that different releases have the same name."""
        return f"no model, {self._scheduler.cache_name}"

    @property
    def note(self) -> str:
        """One sentence about the engine."""
        return (
            f"{self._scheduler.package} {self._scheduler.release} without a model: its scheduler, "
            f"pools and {self._scheduler.cache_name}, as for {self.config.model}; tokens are drawn"
        )

    @property
    def has_sessions(self) -> bool:
        """Whether the release has sessions that keep their KV."""
        return self._scheduler.has_sessions

    def sources(self) -> tuple[str, int]:
        """SHA-256 of the release's files, and their number."""
        return self._scheduler.sources()

    @property
    def vocab_size(self) -> int:
        """Upper bound (exclusive) of token ids."""
        return VOCAB_SIZE

    # Traffic.

    def submit(  # noqa: PLR0913 - the engine's own signature
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
        """Submit a request to the release, which may refuse it; a later step reports that.

        Raises:
            DuplicateRequestError: ``rid`` belongs to a request that has not ended.
            UsageError: it has a payload, which released engines do not support.
        """
        if rid in self._requests:
            raise DuplicateRequestError(
                f"request id {rid!r} belongs to a request that has not ended; choose another id."
            )
        if payload:
            raise UsageError("released engines run without a model and do not support payloads.")
        counters = self.counters
        counters.requests_submitted += 1
        prompt = list(input_ids)
        longest = self.config.max_request_len - sampling_params.max_new_tokens
        if truncate and session_id is None and len(prompt) > longest > 0:
            prompt = prompt[:longest]
            counters.requests_truncated += 1
        now_s = time.monotonic()
        record = self._scheduler.submit(
            rid, prompt, sampling_params, session_id, priority, extra_key
        )
        self._requests[rid] = _Request(rid, now_s, record, session_id, last_heard_s=now_s)

    def open_session(self, session_id: str, *, timeout_s: float | None = None) -> bool:
        """Open a session whose turns keep their KV; False if the id is already open."""
        if not self.has_sessions or session_id in self._scheduler.sessions():
            return False
        opened = self._scheduler.open_session(session_id, timeout_s)
        self.counters.session_opens += opened
        return opened

    def close_session(self, session_id: str) -> bool:
        """Close a session, after its current turn; False if there is no such session."""
        before = set(self._scheduler.sessions())
        if session_id not in before:
            return False
        self._scheduler.close_session(session_id)
        if session_id in self._scheduler.sessions() and session_id not in self._closing:
            self._closing.add(session_id)
            self.counters.session_deferred_closes += 1
        self._note_closed(before, session_id)
        return True

    def reap_sessions(self) -> float | None:
        """Close sessions that timed out; seconds until the next call, None without sessions.

        The release checks once a second, and does not report when the next timeout is due.
        """
        before = set(self._scheduler.sessions())
        if not before:
            return None
        self._scheduler.reap_sessions()
        self._note_closed(before)
        return _LONGEST_NAP_S

    def abort(self, rid: str) -> bool:
        """Abort a request; False if there is no such request."""
        request = self._requests.get(rid)
        if request is None:
            return False
        request.aborted_in = request.aborted_in or request.stage
        self._scheduler.abort(rid)
        return True

    def abort_all(self) -> int:
        """Abort every request; return how many were not being aborted already."""
        asked = [one for one in self._requests.values() if not one.aborted_in]
        for request in asked:
            self.abort(request.rid)
        return len(asked)

    def disconnect(self, rid: str) -> bool:
        """Abort the request of a client that left; no further event names ``rid``."""
        if not self.abort(rid):
            return False
        self.counters.disconnects += 1
        self._requests[rid].has_client = False
        return True

    def pause_generation(self, mode: PauseMode = "abort") -> None:
        """Run nothing until ``continue_generation``; with "abort", only abort every request.

        The release's scheduler has no mode "abort": its server aborts until nothing runs, and holds
        new requests back.
        """
        self.counters.pauses += 1
        if mode == "abort":
            self.abort_all()
        else:
            self._scheduler.pause(mode)

    def continue_generation(self) -> None:
        """Resume after a pause."""
        self._scheduler.resume()

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False without effect unless idle.

        The release's own flush resets its allocators, which would hide leaked slots.
        """
        if not self.is_idle or self._scheduler.accounts.session_records():
            return False
        self._scheduler.evict_all()
        self._cache.look()
        self.counters.flushes += 1
        return True

    def find(self, rid: str) -> _Request | None:
        """A live request whose client is connected; read-only."""
        request = self._requests.get(rid)
        return request if request is not None and request.has_client else None

    # Steps.

    def step(self) -> list[EngineEvent]:
        """Run one iteration of the release's loop; return its events."""
        scheduler, counters = self._scheduler, self.counters
        sessions = set(scheduler.sessions())
        scheduler.reap_sessions()
        began_s = time.thread_time()
        done = scheduler.step()
        self._schedule_s += time.thread_time() - began_s
        if done.mode == "idle":
            # Otherwise this would busy-loop while the release admits none of its queued requests.
            time.sleep(_IDLE_NAP_S)
        counters.steps += 1
        counters.idle_steps += done.mode == "idle"
        counters.prefill_steps += done.mode == "extend"
        counters.decode_steps += done.mode == "decode"
        counters.prompt_tokens += done.prompt_tokens
        counters.refusals += done.refusals
        counters.prefill_chunks += len(done.cut)
        self._note_closed(sessions)
        self._cache.look()
        self._note_retracted()
        events = [event for event in self._events(done) if event is not None]
        running = self.running_requests
        self.max_running_requests_seen = max(self.max_running_requests_seen, running)
        if not self._steady.is_steady:
            self._observe(done, running)
        return events

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do or to report; a paused engine has nothing to do."""
        scheduler = self._scheduler
        busy = not scheduler.is_at_rest and not scheduler.is_paused
        return busy or scheduler.has_sent_away

    @property
    def is_idle(self) -> bool:
        """Whether no request is waiting or running."""
        return self._scheduler.is_at_rest

    @property
    def is_steady(self) -> bool:
        """Whether warm-up is over; see :class:`SteadyDetector`."""
        return self._steady.is_steady

    @property
    def uncounted(self) -> frozenset[str]:
        """Events that may happen, but cannot be observed in this release."""
        return self._scheduler.uncounted

    @property
    def host_failure(self) -> str:
        """Empty: a release's host tier is not driven."""
        return ""

    @property
    def steady_reason(self) -> str:
        """Why the engine counts as steady; empty before."""
        return self._steady.reason

    # Read by probes.

    @property
    def running_requests(self) -> int:
        """Number of admitted requests that have not ended."""
        return len(self._scheduler.admitted())

    @property
    def waiting_requests(self) -> int:
        """Number of requests in the queue."""
        return len(self._scheduler.waiting())

    def pool_stats(self) -> dict[str, PoolStats]:
        """Slots of each pool, by holder."""
        return self._scheduler.accounts.stats()

    def held_by_waiting(self) -> dict[str, dict[str, int]]:
        """Slots held by waiting requests: by rid, then by pool."""
        return self._scheduler.accounts.held_by_waiting()

    def check_invariants(self, idle: bool) -> list[InvariantViolation]:
        """Pools whose slots are not all accounted for; see :class:`Books`."""
        return self._books.check(idle=idle)

    def audit(self) -> list[InvariantViolation]:
        """Slots with two holders."""
        return self._books.audit()

    def audit_rows(self) -> list[InvariantViolation]:
        """Nothing: the slots of rows are compared in ``audit``."""
        return []

    def last_owner(self, pool: str, slot: int) -> str:
        """Empty: releases do not record owners."""
        return ""

    def objections(self) -> dict[str, int]:
        """Empty: releases have no owner ledger."""
        return {}

    def removals(self) -> tuple[int, int]:
        """Zeros: removals within a step cannot be observed."""
        return 0, 0

    def containers(self) -> dict[str, int]:
        """Number of entries of everything that could grow without bound."""
        return {**self._cache.sizes(), **self._scheduler.containers()}

    def find_containers(self) -> None:
        """Do nothing: the adapter lists a release's containers."""

    def timings(self) -> dict[str, float]:
        """CPU time of the release's own steps."""
        return {"schedule_s": self._schedule_s}

    def liveness(self) -> Liveness:
        """Ages of requests, and requests without a client; O(requests)."""
        now_s, requests = time.monotonic(), self._requests.values()
        running = [one for one in requests if one.stage != "queued"]
        return Liveness(
            requests_without_client=sum(
                1 for one in requests if not one.has_client and not one.aborted_in
            ),
            oldest_request_s=max((now_s - one.submitted_s for one in requests), default=0.0),
            oldest_silence_s=max((now_s - one.last_heard_s for one in running), default=0.0),
        )

    def reference_counted_classes(self) -> Mapping[str, tuple[type, int]]:
        """Classes whose instances reference counting must free, with the reachable instances."""
        reported = [one.record.req for one in self._requests.values() if one.record is not None]
        return {
            name: (kind, held + self._beside[name])
            for name, (kind, held) in self._scheduler.objects(reported).items()
        }

    # Events of a step.

    def _events(self, done: Step) -> Iterable[EngineEvent | None]:
        now_s = time.monotonic()
        for rid, sentence in done.sent_away.items():
            request = self._requests.get(rid)
            if request is not None:
                yield self._ended(request, sentence)
        by_req = {id(one.record.req): one for one in self._requests.values() if one.record}
        for req in done.reqs:
            request = by_req.get(id(req))
            if request is None:
                continue
            if id(req) in done.prefilled:
                yield self._admitted(request, is_cut=id(req) in done.cut)
            if len(request.output_ids) > len(request.itl_s) + (request.first_token_s is not None):
                yield self._heard(request, now_s)
            if request.record is not None and request.record.end is not None:
                yield self._ended(request, "")

    def _admitted(self, request: _Request, *, is_cut: bool) -> EngineEvent | None:
        if request.stage == "queued":
            self._count_admission(request)
        request.stage = "prefill" if is_cut else "decode"
        request.last_heard_s = time.monotonic()
        if request.was_admitted:
            return None
        request.was_admitted = True
        record = _record_of(request)
        return self._for_client(
            request,
            EngineEvent(
                EventKind.ADMITTED,
                request.rid,
                prompt_tokens=record.prompt_tokens,
                cached_tokens=record.cached_tokens,
            ),
        )

    def _count_admission(self, request: _Request) -> None:
        counters, record = self.counters, _record_of(request)
        reused = record.cached_tokens
        counters.admissions += 1
        if request.was_admitted:
            counters.retract_retries += 1
            counters.session_retries += request.session_id is not None
            return
        if reused > 0:
            counters.prefix_hits += 1
            counters.prefix_hit_tokens += reused
            in_session = request.session_id is not None
            counters.session_restores += in_session
            counters.session_restored_tokens += reused if in_session else 0
            # A reused state is copied for the request, unless it comes from its session.
            counters.cow_copies += record.holds_state and not in_session

    def _heard(self, request: _Request, now_s: float) -> EngineEvent | None:
        """Record one more token of ``request``."""
        self.counters.output_tokens += 1
        gap_s, request.last_heard_s = now_s - request.last_heard_s, now_s
        if request.first_token_s is not None:
            request.itl_s.append(gap_s)
            return None
        request.first_token_s = now_s
        event = EngineEvent(EventKind.FIRST_TOKEN, request.rid, ttft_s=now_s - request.submitted_s)
        return self._for_client(request, event)

    def _ended(self, request: _Request, sentence: str) -> EngineEvent | None:
        """Record the end of ``request``; ``sentence`` is the reason, or "" to use its record's."""
        del self._requests[request.rid]
        counters, record = self.counters, request.record
        ended = None if sentence or record is None else record.end
        kind, said = ended or ("abort", "")
        if kind == "abort":
            self._count_abort(request)
            refused = not request.aborted_in and not request.output_ids[1:]
            counters.requests_rejected += refused
            counters.session_rejected_turns += refused and request.session_id is not None
            event_kind = EventKind.REJECTED if refused else EventKind.ABORTED
            sentence = sentence or said or "aborted"
        else:
            event_kind = EventKind.FINISHED
            sentence = kind
            counters.finishes += 1
            counters.finish_length += kind == "length"
            counters.finish_stop += kind != "length"
            counters.session_turns += request.session_id is not None
        first_s = request.first_token_s
        return self._for_client(
            request,
            EngineEvent(
                event_kind,
                request.rid,
                reason=sentence,
                output_ids=tuple(request.output_ids),
                ttft_s=None if first_s is None else first_s - request.submitted_s,
                itl_s=tuple(request.itl_s),
                prompt_tokens=0 if record is None else record.prompt_tokens,
                cached_tokens=0 if record is None else record.cached_tokens,
            ),
        )

    def _count_abort(self, request: _Request) -> None:
        counters, in_session = self.counters, request.session_id is not None
        counters.requests_aborted += bool(request.aborted_in)
        if request.aborted_in == "queued":
            counters.abort_queued += 1
            counters.session_abort_queued += in_session
        elif request.aborted_in == "prefill":
            counters.abort_prefill += 1
            counters.session_abort_prefill += in_session
        elif request.aborted_in == "decode":
            counters.abort_decode += 1
            counters.session_abort_decode += in_session

    @staticmethod
    def _for_client(request: _Request, event: EngineEvent) -> EngineEvent | None:
        return event if request.has_client else None

    def _note_retracted(self) -> None:
        """Count requests that ran before this step and wait after it."""
        waiting = {id(req) for req in self._scheduler.waiting()}
        for request in self._requests.values():
            if request.stage != "queued" and id(_record_of(request).req) in waiting:
                request.stage = "queued"
                self.counters.retracts += 1
                self.counters.session_retracts += request.session_id is not None

    def _note_closed(self, before: set[str], asked: str = "") -> None:
        """Count sessions that were open ``before`` but no longer are; a call closed ``asked``."""
        gone = before - set(self._scheduler.sessions())
        self.counters.session_closes += len(gone)
        self.counters.session_timeouts += len(gone - self._closing - {asked})
        self._closing -= gone

    def _observe(self, done: Step, running: int) -> None:
        counters = self.counters
        self._steady.observe(
            StepLoad(
                mode=done.mode,
                tokens=done.tokens,
                requests=running,
                used=self._scheduler.used_slots(),
                evictions=counters.evict_internal_state + counters.nodes_evicted,
                finished=counters.finishes,
            )
        )


def _record_of(request: _Request) -> Record:
    """The record of a request that the release did not refuse on submission."""
    assert request.record is not None
    return request.record


def _live_instances(objects: Mapping[str, tuple[type, int]]) -> dict[str, int]:
    """Number of live instances of each class that the structures do not hold."""
    gc.collect()
    alive = Counter(map(type, gc.get_objects()))
    return {
        name: sum(n for kind, n in alive.items() if issubclass(kind, wanted)) - held
        for name, (wanted, held) in objects.items()
    }
