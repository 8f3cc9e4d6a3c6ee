"""Messages between parent and worker: one record per message, no behaviour.

There are two groups: *traffic* changes what the engine does, *probes* only read.  Times are seconds
of ``CLOCK_MONOTONIC``, which all processes of a machine share; durations are seconds; sizes are
bytes or slots, as the name says.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from hybridbench.records.heap import (
    InstanceCount,
    SiteRecord,
    StageReading,
    SurveyRecord,
    TypeCount,
)
from hybridbench.records.wire_record import WireMessage, WireRecord

Scalar: TypeAlias = bool | int | float | str | None
PauseMode: TypeAlias = Literal["abort", "retract", "in_place"]


# Parent to worker: how the engine is built.  Always the first message.


class Start(WireMessage, frozen=True):
    """Everything the worker must know before it builds its engine.

    ``engine`` holds the fields of the engine's configuration by name, so that one parent can run
    two versions of an engine.
    """

    engine: dict[str, Scalar | dict[str, Scalar]]
    defects: list[str] = []
    gc_mode: str = "default"
    gc_thresholds: list[int] = []
    ballast_objects: int = 0
    # Here and below the wire keeps its original names, because older workers are also soaked.
    heap_scan_timeout_s: float = msgspec.field(default=20.0, name="census_timeout_s")
    # Paths that a profile forces, by name: one in this many events takes the path.
    force: dict[str, int] = {}
    # Finished requests in each half of the sample; each comes as a FinishedAnswer.
    answers_kept: int = 0
    # The worker is a reference: it answers Recompute and nothing else.
    is_reference: bool = False
    # The released engine whose classes are driven, such as sglang-cache; the bundled one if empty.
    released: str = ""


# Parent to worker: traffic.


# The value of ``top_k`` that switches the filter off.
ALL_TOKENS: Final = -1


class Sampling(WireRecord, frozen=True):
    """How one request samples its tokens; ``top_k`` -1 and ``top_p`` 1.0 consider all tokens.

    The fields are those of the engine's SamplingParams.  In a workload, ``ignore_eos`` is set if
    and only if there are no ``stop_token_ids``.  ``logprobs`` requests the logprob of each output
    token and of that many of the most probable ones at its place; None requests none.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = ALL_TOKENS
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = True
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None

    @property
    def drawn_at(self) -> float:
        """The temperature; 0 where the most probable token is always chosen."""
        return 0.0 if self.top_k == 1 else self.temperature


class Submit(WireMessage, frozen=True):
    """A new request.  ``input_ids`` belongs to the workload and is read-only.

    ``priority`` None leaves it to the engine.
    With ``payload_bytes`` it has a payload of that size, which the worker generates from
    ``payload_seed``: equal seeds give equal payloads, and megabytes need not cross the wire.
    With a ``session_id`` it is that session's next turn, and ``input_ids`` are only the new tokens.
    Requests with different ``extra_key`` share no prefix.  With ``stream`` its tokens are reported
    after each step, not only at its end.
    """

    rid: str
    input_ids: list[int]
    sampling: Sampling
    truncate: bool = False
    payload_bytes: int = 0
    payload_seed: int = 0
    session_id: str = ""
    priority: int | None = None
    extra_key: str = ""
    stream: bool = False


class OpenSession(WireMessage, frozen=True):
    """Open a session that closes itself after ``timeout_s`` without a turn; 0 means never.

    A session that is already open is left unchanged.  Its turns are reported like any request.
    """

    session_id: str
    timeout_s: float = 0.0


class CloseSession(WireMessage, frozen=True):
    """Close a session, after its current turn if there is one; ignored if it is unknown.

    It may have closed itself already.
    """

    session_id: str


class Abort(WireMessage, frozen=True):
    """Stop a request in any state; its end is still reported."""

    rid: str


class Disconnect(WireMessage, frozen=True):
    """The client of a request disconnected without an abort."""

    rid: str


class AbortAll(WireMessage, frozen=True):
    """Stop every request; the end of each is still reported."""


class PauseGeneration(WireMessage, frozen=True):
    """Run nothing until ContinueGeneration; ``mode`` says what happens to the requests."""

    mode: PauseMode


class ContinueGeneration(WireMessage, frozen=True):
    """Continue after PauseGeneration; harmless if the engine is not paused."""


class Drain(WireMessage, frozen=True):
    """Finish all requests, ending a pause; answered by Drained when the engine is idle."""


class Resume(WireMessage, frozen=True):
    """Accept traffic again after a drain."""


class Flush(WireMessage, frozen=True):
    """Drop every cached prefix; answered by Flushed."""


class Reclaim(WireMessage, frozen=True):
    """Free as much memory as possible; answered by Reclaimed.  The last action of a run."""


class TrackAllocations(WireMessage, frozen=True):
    """Record every allocation into the file ``path`` from now on, or stop if it is empty; answered
    by AllocationsTracked.  Slows the engine several times: use only after all measurements.
    """

    path: str = ""


class Recompute(WireMessage, frozen=True):
    """To a reference: recompute an answer up to its first difference; answered by Recomputed.

    ``prompt``, ``output``, ``temperature`` and ``seed`` are those of a ``FinishedAnswer``.  If
    ``careful``, also look for a near-tie between experts that explains a difference.  ``chunk``
    prompt tokens are computed at a time; 0 computes all at once.
    """

    probe_id: int
    prompt: bytes
    output: bytes
    careful: bool = False
    chunk: int = 0
    temperature: float = 0.0
    seed: int = 0


class Shutdown(WireMessage, frozen=True):
    """Exit; answered by Goodbye."""


# Parent to worker: probes.


class Counters(WireMessage, frozen=True):
    """Read cheap values; answered promptly by CountersReply, even while the engine loop hangs."""

    probe_id: int


class ScanHeap(WireMessage, frozen=True, tag="Census"):
    """Count what a full collection would free; answered by HeapScanReply when the child is done."""

    probe_id: int


class Checkpoint(WireMessage, frozen=True):
    """Read everything between two steps, with a heap scan; answered by CheckpointReply."""

    probe_id: int
    index: int
    audit: bool = False  # also account for every slot one by one


# Worker to parent.


class Ready(WireMessage, frozen=True):
    """The engine is built, warmed up at its largest shapes, and waits for traffic."""

    pid: int
    capabilities: list[str]
    metrics: list[str]
    heap_scan: str = msgspec.field(name="census")
    engine_files_sha256: str
    engine_files: int
    model: str
    model_note: str
    pools: dict[str, int]
    versions: dict[str, str]
    gc: dict[str, Scalar]
    malloc: dict[str, Scalar]
    max_prompt_tokens: int
    vocab_size: int
    boot_s: float
    device_bytes: int = 0
    """Memory that it can use on its CUDA device; 0 without one."""
    uncounted: list[str] = []
    """Events that may happen in the engine, but are not counted."""


class Ended(WireRecord, frozen=True):
    """A request that finished or was aborted, with its output so far."""

    rid: str
    output_ids: list[int]
    reason: str
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float | None
    itl_s: float | None  # mean time between its tokens


class FinishedAnswer(WireMessage, frozen=True):
    """A finished request that was sampled to be recomputed by a reference.

    It takes ``place`` in its half of the sample: requests that ``reused`` something, or those that
    did not.  ``prompt`` is what was computed (the session's history first, after truncation) and
    ``output`` what was emitted, four bytes per token.  ``traits`` are names of ``Trait``;
    ``cached_tokens`` of the prompt were reused.  ``ancestors`` are the requests that it continues
    from, nearest first: for each its number, as in ``arrival``, and its traits as ``pack_traits``
    encodes them.  ``temperature`` (0: greedy) and ``seed`` are the request's.
    """

    rid: str
    reused: bool
    place: int
    prompt: bytes
    output: bytes
    traits: list[str]
    cached_tokens: int = 0
    arrival: int = -1
    ancestors: list[tuple[int, int]] = []
    temperature: float = 0.0
    seed: int = 0


class AnswerTotals(WireMessage, frozen=True):
    """How many requests have finished so far, by whether their answers can be recomputed:
    "comparable", "filtered" (by top_k or top_p), "payload".
    """

    finished: dict[str, int]


class ReferenceReady(WireMessage, frozen=True):
    """The first message of a reference: its model, and its CPU time so far."""

    family: str
    layers: int
    hidden_size: int
    sliding_window: int
    cpu_s: float


class Recomputed(WireMessage, frozen=True):
    """How an answer compares with the reference's, up to the first token that differs.

    ``distance`` is that of ``hybridbench.worker.reference`` at ``wrong_place``, counted from the
    first token of the output; -1 if nothing differs.  ``best`` is the reference's token there.
    ``routing_gap``, for a careful computation, is the gap of a near-tie between experts that
    explains the difference, relative to the root mean square of the scores.  ``cpu_s`` is the
    CPU time of the process so far; ``error`` says why nothing was compared.
    """

    probe_id: int
    compared: int
    wrong_place: int
    distance: float
    emitted: int
    best: int
    cpu_s: float
    routing_gap: float | None = None
    error: str = ""


class TokenLogprobs(WireRecord, frozen=True):
    """The logprob of one output token, before temperature and filters, and the ids and logprobs of
    the most probable tokens at its place, best first.
    """

    logprob: float
    best: list[tuple[int, float]]


class Rejected(WireRecord, frozen=True):
    """A request that the engine refused on arrival."""

    rid: str
    message: str


class StepEvents(WireMessage, frozen=True):
    """What the steps since the last such message did, combined.

    ``emitted`` holds the new tokens of running streaming requests, by ``rid``; a request's last
    tokens are in the output of its ``Ended``.  ``logprobs`` cover a request's tokens in this
    message that no earlier one contained, if the request asked for them.
    """

    t_s: float
    steps: int
    admitted: list[str]
    first_tokens: list[str]
    finished: list[Ended]
    rejected: list[Rejected]
    aborted: list[Ended]
    emitted: dict[str, list[int]] = {}
    logprobs: dict[str, list[TokenLogprobs]] = {}


class CountersReply(WireMessage, frozen=True):
    """Declared metrics by name; not ``fresh`` if the engine loop did not answer in time."""

    probe_id: int
    t_s: float
    fresh: bool
    busy: bool
    step_age_s: float  # since the last step ended, while there is work; 0 when idle
    steps: int
    values: dict[str, float]
    latencies: dict[str, dict[int, int]] = {}  # ``LatencyCounts`` since the last fresh reply


class HeapScanReply(WireMessage, frozen=True, tag="CensusReply"):
    """What a full collection would free now.  ``error`` is empty on success."""

    probe_id: int
    t_s: float
    method: str
    error: str
    stop_s: float  # how long the engine loop was stopped
    child_s: float  # CPU time
    tracked_objects: int = 0
    collectible_objects: int = 0
    collectible_bytes: int = 0
    exact_bytes: bool = True  # False: bytes are extrapolated from part of the objects
    types: list[TypeCount] = []
    instances: dict[str, InstanceCount] = {}
    stop_cpu_s: float | None = None  # CPU time of the stop; older workers do not report it


class ViolationRecord(WireRecord, frozen=True):
    """One inconsistency in the engine's state, in the engine's wording."""

    kind: str
    pool: str
    message: str
    slots: list[int]
    count: int = 0  # total number; negative for slots counted twice
    owners: list[str] = []  # last owners of ``slots`` by the ledger; empty if not asked for


class CheckpointReply(WireMessage, frozen=True):
    """The state of the engine at one moment between two steps."""

    probe_id: int
    index: int
    t_s: float
    idle: bool
    pools: dict[str, dict[str, int]]
    locks: dict[str, int]
    containers: dict[str, int]
    running: int
    waiting: int
    counters: dict[str, int]
    violations: list[ViolationRecord]
    heap_scan: HeapScanReply = msgspec.field(name="census")


class Steady(WireMessage, frozen=True):
    """The engine is warm: pools have reached their high-water mark, and all shapes have run."""

    t_s: float
    reason: str


class Drained(WireMessage, frozen=True):
    """The engine is idle."""

    t_s: float


class Flushed(WireMessage, frozen=True):
    """The answer to Flush; ``done`` is False while requests run."""

    t_s: float
    done: bool


class Reclaimed(WireMessage, frozen=True):
    """The answer to Reclaim: private memory when idle and after each step, in bytes."""

    t_s: float
    at_rest_bytes: int
    after_trim_bytes: int
    after_flush_bytes: int
    after_collect_bytes: int


class AllocationsTracked(WireMessage, frozen=True):
    """The answer to TrackAllocations; ``error`` says why it failed, if it did."""

    t_s: float
    error: str = ""


class Violation(WireMessage, frozen=True):
    """The engine's own check failed, or it raised an ownership error."""

    t_s: float
    step: int
    violation: ViolationRecord


class LogLine(WireMessage, frozen=True):
    """A line that the engine logged for the user."""

    t_s: float
    text: str


class Fatal(WireMessage, frozen=True):
    """The worker cannot continue; ``message`` is one sentence, ``trace`` the error's traceback.

    ``usage`` means that the user can correct it (unknown model, impossible pool).
    """

    message: str
    trace: str
    usage: bool = False


class Goodbye(WireMessage, frozen=True):
    """The last message of a worker that exits cleanly."""

    t_s: float
    probe_stop_s: float


class InjectedTruth(WireMessage, frozen=True):
    """What injected defects actually did, by slug and name of the count; sent when the worker exits
    or crashes.  It is not evidence: it is stored with the run, but the analysis never reads it.

    ``counts`` are those since traffic began.  ``at_idle`` are the counts at the last checkpoint
    that found the engine idle, or all of them if none did, including those before the traffic;
    empty from a worker of an earlier version.  ``before_steady`` are the part of ``counts`` up to
    the engine's ``steady`` event; empty if there was none.
    """

    counts: dict[str, dict[str, int]]
    at_idle: dict[str, dict[str, int]] = {}
    before_steady: dict[str, dict[str, int]] = {}


class Diagnose(WireMessage, frozen=True):
    """Run the named stages, in their fixed order; answered by Diagnosis.

    ``rest`` reads memory, ``rehearse`` tries all stages in a forked child, ``trim`` releases
    malloc's free memory, ``survey`` examines the whole heap in a forked child.  ``collect``,
    ``flush`` and ``device`` are destructive: only at the end of a run.  ``paths`` and ``classes``
    are the tables of the survey to compare with.
    """

    probe_id: int
    stages: list[str]
    paths: dict[str, tuple[int, int]] = {}
    classes: dict[str, int] = {}


class Diagnosis(WireMessage, frozen=True):
    """The answer to Diagnose; ``survey`` is None if none was requested."""

    probe_id: int
    t_s: float
    stages: list[StageReading]
    survey: SurveyRecord | None = None
    sites: list[SiteRecord] = []


# Messages that a workload may send.
Request: TypeAlias = (
    Submit
    | OpenSession
    | CloseSession
    | Abort
    | Disconnect
    | AbortAll
    | PauseGeneration
    | ContinueGeneration
)
ToWorker: TypeAlias = (
    Start
    | Request
    | Drain
    | Resume
    | Flush
    | Reclaim
    | Shutdown
    | Counters
    | ScanHeap
    | Checkpoint
    | Diagnose
    | TrackAllocations
    | Recompute
)
FromWorker: TypeAlias = (
    Ready
    | StepEvents
    | CountersReply
    | HeapScanReply
    | CheckpointReply
    | Steady
    | Drained
    | Flushed
    | Reclaimed
    | Violation
    | LogLine
    | Fatal
    | Goodbye
    | InjectedTruth
    | Diagnosis
    | AllocationsTracked
    | FinishedAnswer
    | AnswerTotals
    | ReferenceReady
    | Recomputed
)
