"""Every metric, declared once: name, unit, kind, direction, practical threshold, meaning.

Writing an undeclared metric fails (``declared``); analysis and reports read units and thresholds
only from here.  A name with ``*`` declares a family (``pool.*.available``).  If a run has several
processes, each one's series has the metric's name with labels (``foundation/labels.py``), and
shares its declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache, partial

from hybridbench.foundation.labels import unlabelled, whose

_MIB = float(2**20)


class Unit(StrEnum):
    """Unit of a value."""

    BYTES = "B"
    COUNT = "count"
    SLOTS = "slots"
    SECONDS = "s"
    MILLISECONDS = "ms"
    PER_SECOND = "1/s"
    RATIO = "ratio"


class Kind(StrEnum):
    """How a value behaves over time."""

    LEVEL = "level"  # goes up and down
    COUNTER = "counter"  # cumulative since the worker started, never falls
    WINDOW = "window"  # a statistic of the interval since the last sample
    QUOTIENT = "quotient"  # quotient of counters over a window; never sampled
    BLOCK = "block"  # measured for a block of a comparison; never sampled


class Check(StrEnum):
    """The analysis of a metric."""

    TREND = "trend"  # robust slope with confidence interval, by time and work; gates the verdict
    EXACT = "exact"  # must be zero (or balance) at an idle checkpoint; gates the verdict
    DRIVER = "driver"  # an event counter that findings may name as their cause
    SHOWN = "shown"  # growth has no effect on the verdict; other kinds of finding may use it


@dataclass(frozen=True)
class MetricSpec:
    """One metric or family of metrics.

    ``floor_per_hour`` is the smallest growth worth a finding, in units per hour;
    ``floor_share_per_hour`` the same as a share of the level at the start of the judged window; the
    larger of the two applies.  ``margin_per_hour`` is the growth in bytes up to which a metric is
    CLEAN if it has no other limit.  ``handles`` are small counts: a few more in a run are neither a
    leak nor inconclusive.  ``erratic`` metrics are displayed, but too noisy for thresholds and
    comparisons; ``on_device`` metrics exist if tensors are on an accelerator, ``foreign`` ones are
    not expected of our own worker.
    """

    name: str
    meaning: str
    unit: Unit
    kind: Kind
    check: Check = Check.SHOWN
    higher_is_worse: bool = True
    floor_per_hour: float = 0.0
    floor_share_per_hour: float = 0.0
    margin_per_hour: float = 4 * _MIB
    handles: bool = False
    label: str = ""  # its name in sentences, or what it counts, if the metric's name is unsuitable
    erratic: bool = False
    on_device: bool = False
    foreign: bool = False


# Metrics that the analysis uses by name: private memory, shared memory, files in /dev/shm, device
# memory, pinned host memory, memory of CUDA graphs and of the device's driver, garbage, private
# memory at idle checkpoints, full collections; what a process opens, and must close or wait for;
# connections that our load client has open.
MEMORY = "rss_anon_swap_bytes"
SHARED = "shared_bytes"
SHM_FILES = "shm_files_bytes"
DEVICE_MEMORY = "device_allocated_bytes"
PINNED_MEMORY = "pinned_allocated_bytes"
GRAPH_MEMORY = "device_graph_bytes"
DRIVER_MEMORY = "device_driver_bytes"
COLLECTIBLE = "gc_collectible_bytes"
AT_REST = "rest_anon_swap_bytes"
COLLECTIONS = "gc_gen2_collections"
OPEN_FILES = "open_fds"
HANDLES = (OPEN_FILES, "threads", "children", "zombies")
# Written from their first value above zero on, because most processes never have one.
FROM_FIRST = frozenset({SHARED, SHM_FILES, "children", "zombies"})
CLIENT_CONNECTIONS = "client_connections"

# A gauge on the metrics page of a server: 1 once it has warmed up.
STEADY = "hybridbench_steady"

# Declarations of one unit and kind: the name, the meaning, and what differs.
_bytes = partial(MetricSpec, unit=Unit.BYTES, kind=Kind.LEVEL)
_number = partial(MetricSpec, unit=Unit.COUNT, kind=Kind.LEVEL)
_slots = partial(MetricSpec, unit=Unit.SLOTS, kind=Kind.LEVEL)
_count = partial(MetricSpec, unit=Unit.COUNT, kind=Kind.COUNTER)
_time = partial(MetricSpec, unit=Unit.SECONDS, kind=Kind.COUNTER)
_cost = partial(MetricSpec, unit=Unit.MILLISECONDS, kind=Kind.QUOTIENT)
# Memory and small numbers of which growth gates the verdict.
_memory = partial(_bytes, check=Check.TREND, floor_per_hour=0.5 * _MIB, floor_share_per_hour=0.0002)
_handles = partial(_number, check=Check.TREND, floor_per_hour=1.0, handles=True)

METRICS: tuple[MetricSpec, ...] = (
    # Memory of the worker process, from /proc.
    _bytes("rss_bytes", "resident memory of the worker (VmRSS)"),
    _memory(
        "rss_anon_swap_bytes",
        "private memory of the worker, in RAM (RssAnon) or swapped out (VmSwap)",
        label="private memory",
    ),
    _memory(
        SHARED,
        "shared memory that the process has mapped and used (RssShmem); absent before the first",
        label="shared memory",
        foreign=True,
    ),
    _memory(
        SHM_FILES,
        "files in /dev/shm made by the target's user since the start, mapped or not",
        label="memory of new files in /dev/shm",
        foreign=True,
    ),
    _bytes(
        "rest_anon_swap_bytes",
        "idle memory: private memory at an idle checkpoint; a trend if the profile flushes the "
        "cache before it",
        floor_per_hour=0.5 * _MIB,
        floor_share_per_hour=0.0002,
        label="idle memory",
    ),
    _bytes(
        "pss_bytes", "proportional set size (PSS): shared pages are divided among their processes"
    ),
    _bytes("swap_bytes", "memory of the worker that is swapped out (VmSwap)"),
    _handles("threads", "number of threads of the worker", label="threads"),
    _time("worker_cpu_s", "CPU time of all threads of the worker"),
    _time(
        "worker_cpu_wait_s",
        "time the worker's main thread was ready to run and waited for a CPU",
        erratic=True,
    ),
    _time("host_steal_s", "time per CPU that the hypervisor gave to other machines", erratic=True),
    _time(
        "others_cpu_s",
        "time per CPU of all programs beside the run and what it watches",
        erratic=True,
        foreign=True,
    ),
    _handles(OPEN_FILES, "open file descriptors of the worker", label="open files"),
    _handles("children", "live child processes", label="child processes", foreign=True),
    _handles(
        "zombies",
        "ended children that the process has not waited for",
        label="zombies",
        foreign=True,
    ),
    _bytes(
        "malloc_in_use_bytes",
        "bytes that the worker has allocated from malloc (mallinfo2: uordblks + hblkhd)",
    ),
    _number(
        "python_blocks",
        "blocks that Python's small-object allocator has handed out (sys.getallocatedblocks)",
    ),
    _bytes(
        "malloc_arena_bytes",
        "bytes that malloc has taken from the kernel (mallinfo2: arena + hblkhd)",
    ),
    _number(
        "mappings.*", "private anonymous mappings of that size, of which there are eight or more"
    ),
    # Memory of the target's own control group, if it has one, without the page cache.
    _bytes(
        "cgroup_anon_swap_bytes",
        "private memory of all processes of the control group, in RAM or swapped out",
    ),
    _bytes("cgroup_shmem_bytes", "shared memory of the control group, files in /dev/shm included"),
    _bytes(
        "cgroup_kernel_bytes",
        "memory that the kernel uses for the control group, such as page tables and inodes",
    ),
    _bytes("cgroup_sock_bytes", "socket buffers of the control group"),
    _bytes("cgroup_limit_bytes", "limit of the control group's memory", higher_is_worse=False),
    # Memory of the device, from PyTorch's caching allocator.
    _memory(
        "device_allocated_bytes",
        "device memory of the worker's tensors between two steps (torch.cuda.memory_allocated)",
        label="device memory",
        on_device=True,
    ),
    _memory(
        "device_used_bytes",
        "device memory of the worker, as the driver accounts for it (NVML)",
        label="device memory",
        on_device=True,
        foreign=True,
    ),
    _bytes(
        "device_reserved_bytes",
        "device memory that PyTorch has reserved, free blocks included "
        "(torch.cuda.memory_reserved)",
        on_device=True,
    ),
    _bytes(
        DRIVER_MEMORY,
        "device memory of the worker outside PyTorch's allocator, such as the CUDA context, loaded "
        "kernels, streams and events: what the driver accounts for (NVML) less what is reserved",
        on_device=True,
    ),
    _bytes(
        "device_inactive_split_bytes",
        "free memory between tensors in blocks that PyTorch has split, and cannot release; where "
        "it grows beside a level sum of tensors, memory fragments "
        "(inactive_split_bytes of torch.cuda.memory_stats)",
        on_device=True,
    ),
    _memory(
        "device_graph_bytes",
        "device memory that PyTorch has reserved for CUDA graphs, which keep it for their results "
        "whether they are replayed or not (segments of private pools in "
        "torch.cuda.memory_snapshot); 0 if the engine records none",
        label="memory of CUDA graphs",
        on_device=True,
    ),
    # Main memory that the device can access directly, from PyTorch's other caching allocator.
    _memory(
        "pinned_allocated_bytes",
        "pinned host memory in use between two steps: copies of the host tier, index arrays of "
        "steps (active_bytes of torch.cuda.host_memory_stats)",
        label="pinned host memory",
        on_device=True,
    ),
    _bytes(
        "pinned_reserved_bytes",
        "pinned host memory that PyTorch has reserved, free blocks included "
        "(allocated_bytes of torch.cuda.host_memory_stats)",
        on_device=True,
    ),
    # The Python heap of the worker.
    _number(
        "allocated_blocks", "blocks that Python's allocator has handed out (sys.getallocatedblocks)"
    ),
    _count("gc_gen2_collections", "full garbage collections since the start of the worker"),
    _count("gc_collected_objects", "objects freed by the garbage collector"),
    _time("gc_pause_s", "time that the worker spent in garbage collections"),
    _bytes(
        "gc_collectible_bytes",
        "memory that a full garbage collection would free now, counted in a forked child",
        check=Check.TREND,
        floor_per_hour=0.5 * _MIB,
        margin_per_hour=8 * _MIB,
        label="collectible memory",
    ),
    _number(
        "gc_collectible_objects",
        "unreachable objects that only a full garbage collection would free",
    ),
    _number("gc_tracked_objects", "objects that the garbage collector tracks"),
    # Instances of classes that reference counting frees when healthy ({class} is a class name).
    _number("instances.*.live", "live instances of the class"),
    _number("instances.*.expected", "instances that the engine can reach"),
    _number(
        "instances.*.stray",
        "stale objects of the class: alive, but not reachable from the engine's structures",
        check=Check.EXACT,
    ),
    _number(
        "instances.*.collectible",
        "stale objects that a full collection would free",
        check=Check.EXACT,
    ),
    _number(
        "instances.*.retained", "stale objects that survive a full collection", check=Check.EXACT
    ),
    # Pools: kv (tokens), swa (tokens in sliding windows), mamba (state slots), req (rows).
    _slots("pool.*.total", "all usable slots of the pool"),
    _slots("pool.*.available", "free slots of the pool", higher_is_worse=False),
    _slots("pool.*.evictable", "slots of unlocked nodes of the tree, free for eviction"),
    _slots("pool.*.protected", "slots of locked nodes of the tree"),
    _slots("pool.*.in_flight", "slots held by admitted requests"),
    _slots("pool.*.session_held", "slots held by idle sessions"),
    _slots("pool.*.waiting_held", "slots held by waiting requests; must be 0", check=Check.EXACT),
    _slots(
        "pool.*.residual",
        "unaccounted slots: neither free nor held by a known holder; must be 0",
        check=Check.EXACT,
    ),
    _number("container.*.len", "entries of a list or table of the engine"),
    # Traffic and time.
    _number("running_requests", "requests in the running batch"),
    _number("waiting_requests", "requests that wait for admission"),
    _number("max_running_requests", "largest running batch since the start of the worker"),
    MetricSpec(
        "throughput_tokens_per_s",
        "prompt and output tokens computed per second, without those from the cache",
        Unit.PER_SECOND,
        Kind.WINDOW,
        higher_is_worse=False,
    ),
    MetricSpec(
        "requests_per_s",
        "requests finished per second",
        Unit.PER_SECOND,
        Kind.WINDOW,
        higher_is_worse=False,
    ),
    MetricSpec("ttft_ms_p50", "median time to first token (TTFT)", Unit.MILLISECONDS, Kind.WINDOW),
    MetricSpec(
        "ttft_ms_p99",
        "99th percentile of the time to first token (TTFT)",
        Unit.MILLISECONDS,
        Kind.WINDOW,
        erratic=True,
    ),
    MetricSpec("itl_ms_p50", "median inter-token latency (ITL)", Unit.MILLISECONDS, Kind.WINDOW),
    MetricSpec(
        "itl_ms_p99",
        "99th percentile of the inter-token latency (ITL)",
        Unit.MILLISECONDS,
        Kind.WINDOW,
        erratic=True,
    ),
    _time("step_s", "time spent in engine steps"),
    # Parts of a step's time.  Their growth per call or per token is judged as decay.
    _time("match_s", "CPU time in prefix matches"),
    _time("insert_s", "CPU time in cache inserts"),
    _time("evict_s", "CPU time in evictions"),
    _time("schedule_s", "CPU time to form batches and process their results, cache calls included"),
    _time("forward_s", "time in the forward pass of the model"),
    _time("forward_cpu_s", "CPU time in the forward pass of the model"),
    _time("check_s", "CPU time in the engine's own checks"),
    # Requests that live too long, or have no client.
    MetricSpec(
        "oldest_request_s", "age of the oldest request in the engine", Unit.SECONDS, Kind.LEVEL
    ),
    MetricSpec(
        "oldest_silence_s",
        "longest time since an admitted request got its last token",
        Unit.SECONDS,
        Kind.LEVEL,
    ),
    _number(
        "requests_without_client",
        "requests whose client has left and that were not aborted; must be 0",
        check=Check.EXACT,
    ),
    _count("steps_with.*", "engine steps in which the event occurred"),
    MetricSpec(
        "waiting_taken.*.*",
        "slots taken by waiting requests in steps in which the event occurred",
        Unit.SLOTS,
        Kind.COUNTER,
    ),
    MetricSpec(
        "lost_taken.*.*",
        "slots that became unaccounted in steps in which the event occurred",
        Unit.SLOTS,
        Kind.COUNTER,
    ),
    _count(
        "events.*", "count of an engine event, such as finishes or evictions", check=Check.DRIVER
    ),
    _count(
        "scraped.*",
        "counter that the target itself reports, such as of its finished requests",
        check=Check.DRIVER,
    ),
    _number(
        "gauge.*", "gauge that the target itself reports, such as of its running requests or a pool"
    ),
    _handles(
        "scraped_series",
        "series on the metrics page of the target; labels that grow by distinct values never end",
        label="series on the metrics page",
        foreign=True,
    ),
    # Our own load client for a third-party target.
    _bytes(
        "client_anon_swap_bytes",
        "private memory of the load client",
        label="private memory of the load client",
        foreign=True,
    ),
    MetricSpec(
        "client_cpu_share",
        "share of a processor that the load client takes",
        Unit.RATIO,
        Kind.LEVEL,
        label="processor time of the load client",
        foreign=True,
    ),
    _number(
        "client_in_flight",
        "requests that the load client has sent and that have not ended",
        label="requests in flight",
        foreign=True,
    ),
    _number(
        CLIENT_CONNECTIONS,
        "connections that the load client has open to the server",
        label="connections of the load client",
        foreign=True,
    ),
    # Costs of work over a window; ``analysis/trend/work_cost.py`` defines them from counters.
    _cost("evict_ms", "CPU time of an eviction"),
    _cost("evict_ms_per_node", "CPU time of an eviction per node"),
    _cost("match_ms", "CPU time of a prefix match"),
    _cost("insert_ms", "CPU time of an insert into the cache"),
    _cost("schedule_ms", "CPU time to form a batch and process its results, without cache calls"),
    _cost("forward_ms", "time of the model per token"),
    _cost("forward_cpu_ms", "CPU time of the model per token"),
    _cost("check_ms", "CPU time of the engine's own checks after a step"),
    _cost("token_ms", "time of a step per token"),
    _cost("gc_full_ms", "time of a full collection", erratic=True),
    _cost("gc_share", "share of busy time spent in garbage collection", unit=Unit.RATIO),
    _cost(
        "hit_rate",
        "share of prompt tokens served by the cache",
        unit=Unit.RATIO,
        higher_is_worse=False,
    ),
    # Further values of a block in `compare`.
    _cost("cpu_ms_per_token", "CPU time per token of a block", kind=Kind.BLOCK),
    _cost("cpu_ms_per_request", "CPU time per request of a block", kind=Kind.BLOCK),
    _cost("step_ms_per_token", "time of a step per token of a block", kind=Kind.BLOCK),
    _bytes("peak_rss_bytes", "largest resident memory during a block", kind=Kind.BLOCK),
    # The observer's own cost.
    _time("probe_stop_s", "time that probes stopped the engine loop"),
    _time(
        "probe_wait_s",
        "part of probe_stop_s in which the worker waited instead of computing",
        erratic=True,
    ),
    _time("probe_child_s", "CPU time of forked heap scans"),
    _bytes(
        "observer_held_bytes",
        "private memory of the worker that the bench's own probes have taken and not released",
    ),
    MetricSpec(
        "sampler_late_s",
        "delay of the sample against its schedule",
        Unit.SECONDS,
        Kind.WINDOW,
        erratic=True,
    ),
    MetricSpec(
        "sampler_cost_s",
        "time that the bench process needed for the sample",
        Unit.SECONDS,
        Kind.WINDOW,
        erratic=True,
    ),
    _bytes("harness_rss_bytes", "resident memory of the bench process"),
)


@lru_cache(maxsize=4096)
def spec_of(name: str) -> MetricSpec | None:
    """The declaration for ``name``, which may have labels, or None."""
    name = unlabelled(name)
    for spec in METRICS:
        if spec.name == name or ("*" in spec.name and fnmatchcase(name, spec.name)):
            return spec
    return None


def declared(name: str) -> MetricSpec:
    """The declaration for ``name``.

    Raises:
        KeyError: the metric is not declared in ``METRICS``.
    """
    spec = spec_of(name)
    if spec is None:
        raise KeyError(f"metric {name!r} is not declared in hybridbench/foundation/metrics.py")
    return spec


def label_of(name: str) -> str:
    """The metric's label for sentences, with its owner; its name if it has no label."""
    spec = spec_of(name)
    if spec is None or not spec.label:
        return name
    label = f"the number of {spec.label}" if spec.unit is Unit.COUNT else spec.label
    owner = whose(name)
    return f"{label} of {owner}" if owner else label
