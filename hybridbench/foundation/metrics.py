"""Every metric, declared once: name, unit, kind, direction, practical threshold, meaning.

Writing an undeclared metric fails (``declared``); analysis and reports read units and thresholds
only from here.  A name with ``*`` declares a family (``pool.*.available``).  If a run has several
processes, each one's series has the metric's name with labels (``foundation/labels.py``), and
shares its declaration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

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
    unit: Unit
    kind: Kind
    meaning: str
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

_COSTS = (
    ("evict_ms", "CPU time of an eviction"),
    ("evict_ms_per_node", "CPU time of an eviction per node"),
    ("match_ms", "CPU time of a prefix match"),
    ("insert_ms", "CPU time of an insert into the cache"),
    ("schedule_ms", "CPU time to form a batch and process its results, without cache calls"),
    ("forward_ms", "time of the model per token"),
    ("forward_cpu_ms", "CPU time of the model per token"),
    ("check_ms", "CPU time of the engine's own checks after a step"),
    ("token_ms", "time of a step per token"),
)


def _cost(
    name: str, meaning: str, *, unit: Unit = Unit.MILLISECONDS, erratic: bool = False
) -> MetricSpec:
    return MetricSpec(name, unit, Kind.QUOTIENT, meaning, erratic=erratic)


METRICS: tuple[MetricSpec, ...] = (
    # Memory of the worker process, from /proc.
    MetricSpec("rss_bytes", Unit.BYTES, Kind.LEVEL, "resident memory of the worker (VmRSS)"),
    MetricSpec(
        "rss_anon_swap_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "private memory of the worker, in RAM (RssAnon) or swapped out (VmSwap)",
        check=Check.TREND,
        floor_per_hour=0.5 * _MIB,
        floor_share_per_hour=0.0002,
        label="private memory",
    ),
    MetricSpec(
        SHARED,
        Unit.BYTES,
        Kind.LEVEL,
        "shared memory that the process has mapped and used (RssShmem); absent before the first",
        check=Check.TREND,
        floor_per_hour=0.5 * _MIB,
        floor_share_per_hour=0.0002,
        label="shared memory",
        foreign=True,
    ),
    MetricSpec(
        SHM_FILES,
        Unit.BYTES,
        Kind.LEVEL,
        "files in /dev/shm made by the target's user since the start, mapped or not",
        check=Check.TREND,
        floor_per_hour=0.5 * _MIB,
        floor_share_per_hour=0.0002,
        label="memory of new files in /dev/shm",
        foreign=True,
    ),
    MetricSpec(
        "rest_anon_swap_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "idle memory: private memory at an idle checkpoint; a trend if the profile flushes the "
        "cache before it",
        floor_per_hour=0.5 * _MIB,
        floor_share_per_hour=0.0002,
        label="idle memory",
    ),
    MetricSpec(
        "pss_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "proportional set size (PSS): shared pages are divided among their processes",
    ),
    MetricSpec(
        "swap_bytes", Unit.BYTES, Kind.LEVEL, "memory of the worker that is swapped out (VmSwap)"
    ),
    MetricSpec(
        "threads",
        Unit.COUNT,
        Kind.LEVEL,
        "number of threads of the worker",
        check=Check.TREND,
        floor_per_hour=1.0,
        handles=True,
        label="threads",
    ),
    MetricSpec("worker_cpu_s", Unit.SECONDS, Kind.COUNTER, "CPU time of all threads of the worker"),
    MetricSpec(
        "worker_cpu_wait_s",
        Unit.SECONDS,
        Kind.COUNTER,
        "time the worker's main thread was ready to run and waited for a CPU",
        erratic=True,
    ),
    MetricSpec(
        "host_steal_s",
        Unit.SECONDS,
        Kind.COUNTER,
        "time per CPU that the hypervisor gave to other machines",
        erratic=True,
    ),
    MetricSpec(
        "others_cpu_s",
        Unit.SECONDS,
        Kind.COUNTER,
        "time per CPU of all programs beside the run and what it watches",
        erratic=True,
        foreign=True,
    ),
    MetricSpec(
        OPEN_FILES,
        Unit.COUNT,
        Kind.LEVEL,
        "open file descriptors of the worker",
        check=Check.TREND,
        floor_per_hour=1.0,
        handles=True,
        label="open files",
    ),
    MetricSpec(
        "children",
        Unit.COUNT,
        Kind.LEVEL,
        "live child processes",
        check=Check.TREND,
        floor_per_hour=1.0,
        handles=True,
        label="child processes",
        foreign=True,
    ),
    MetricSpec(
        "zombies",
        Unit.COUNT,
        Kind.LEVEL,
        "ended children that the process has not waited for",
        check=Check.TREND,
        floor_per_hour=1.0,
        handles=True,
        label="zombies",
        foreign=True,
    ),
    MetricSpec(
        "malloc_in_use_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "bytes that the worker has allocated from malloc (mallinfo2: uordblks + hblkhd)",
    ),
    MetricSpec(
        "python_blocks",
        Unit.COUNT,
        Kind.LEVEL,
        "blocks that Python's small-object allocator has handed out (sys.getallocatedblocks)",
    ),
    MetricSpec(
        "malloc_arena_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "bytes that malloc has taken from the kernel (mallinfo2: arena + hblkhd)",
    ),
    MetricSpec(
        "mappings.*",
        Unit.COUNT,
        Kind.LEVEL,
        "private anonymous mappings of that size, of which there are eight or more",
    ),
    # Memory of the target's own control group, if it has one, without the page cache.
    MetricSpec(
        "cgroup_anon_swap_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "private memory of all processes of the control group, in RAM or swapped out",
    ),
    MetricSpec(
        "cgroup_shmem_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "shared memory of the control group, files in /dev/shm included",
    ),
    MetricSpec(
        "cgroup_kernel_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "memory that the kernel uses for the control group, such as page tables and inodes",
    ),
    MetricSpec("cgroup_sock_bytes", Unit.BYTES, Kind.LEVEL, "socket buffers of the control group"),
    MetricSpec(
        "cgroup_limit_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "limit of the control group's memory",
        higher_is_worse=False,
    ),
    # Memory of the device, from PyTorch's caching allocator.
    MetricSpec(
        "device_allocated_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "device memory of the worker's tensors between two steps (torch.cuda.memory_allocated)",
        check=Check.TREND,
        floor_per_hour=0.5 * _MIB,
        floor_share_per_hour=0.0002,
        label="device memory",
        on_device=True,
    ),
    MetricSpec(
        "device_used_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "device memory of the worker, as the driver accounts for it (NVML)",
        check=Check.TREND,
        floor_per_hour=0.5 * _MIB,
        floor_share_per_hour=0.0002,
        label="device memory",
        on_device=True,
        foreign=True,
    ),
    MetricSpec(
        "device_reserved_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "device memory that PyTorch has reserved, free blocks included "
        "(torch.cuda.memory_reserved)",
        on_device=True,
    ),
    MetricSpec(
        DRIVER_MEMORY,
        Unit.BYTES,
        Kind.LEVEL,
        "device memory of the worker outside PyTorch's allocator, such as the CUDA context, loaded "
        "kernels, streams and events: what the driver accounts for (NVML) less what is reserved",
        on_device=True,
    ),
    MetricSpec(
        "device_inactive_split_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "free memory between tensors in blocks that PyTorch has split, and cannot release; where "
        "it grows beside a level sum of tensors, memory fragments "
        "(inactive_split_bytes of torch.cuda.memory_stats)",
        on_device=True,
    ),
    MetricSpec(
        "device_graph_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "device memory that PyTorch has reserved for CUDA graphs, which keep it for their results "
        "whether they are replayed or not (segments of private pools in "
        "torch.cuda.memory_snapshot); 0 if the engine records none",
        check=Check.TREND,
        floor_per_hour=0.5 * _MIB,
        floor_share_per_hour=0.0002,
        label="memory of CUDA graphs",
        on_device=True,
    ),
    # Main memory that the device can access directly, from PyTorch's other caching allocator.
    MetricSpec(
        "pinned_allocated_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "pinned host memory in use between two steps: copies of the host tier, index arrays of "
        "steps (active_bytes of torch.cuda.host_memory_stats)",
        check=Check.TREND,
        floor_per_hour=0.5 * _MIB,
        floor_share_per_hour=0.0002,
        label="pinned host memory",
        on_device=True,
    ),
    MetricSpec(
        "pinned_reserved_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "pinned host memory that PyTorch has reserved, free blocks included "
        "(allocated_bytes of torch.cuda.host_memory_stats)",
        on_device=True,
    ),
    # The Python heap of the worker.
    MetricSpec(
        "allocated_blocks",
        Unit.COUNT,
        Kind.LEVEL,
        "blocks that Python's allocator has handed out (sys.getallocatedblocks)",
    ),
    MetricSpec(
        "gc_gen2_collections",
        Unit.COUNT,
        Kind.COUNTER,
        "full garbage collections since the start of the worker",
    ),
    MetricSpec(
        "gc_collected_objects", Unit.COUNT, Kind.COUNTER, "objects freed by the garbage collector"
    ),
    MetricSpec(
        "gc_pause_s",
        Unit.SECONDS,
        Kind.COUNTER,
        "time that the worker spent in garbage collections",
    ),
    MetricSpec(
        "gc_collectible_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "memory that a full garbage collection would free now, counted in a forked child",
        check=Check.TREND,
        floor_per_hour=0.5 * _MIB,
        margin_per_hour=8 * _MIB,
        label="collectible memory",
    ),
    MetricSpec(
        "gc_collectible_objects",
        Unit.COUNT,
        Kind.LEVEL,
        "unreachable objects that only a full garbage collection would free",
    ),
    MetricSpec(
        "gc_tracked_objects", Unit.COUNT, Kind.LEVEL, "objects that the garbage collector tracks"
    ),
    # Instances of classes that reference counting frees when healthy ({class} is a class name).
    MetricSpec("instances.*.live", Unit.COUNT, Kind.LEVEL, "live instances of the class"),
    MetricSpec(
        "instances.*.expected", Unit.COUNT, Kind.LEVEL, "instances that the engine can reach"
    ),
    MetricSpec(
        "instances.*.stray",
        Unit.COUNT,
        Kind.LEVEL,
        "stale objects of the class: alive, but not reachable from the engine's structures",
        check=Check.EXACT,
    ),
    MetricSpec(
        "instances.*.collectible",
        Unit.COUNT,
        Kind.LEVEL,
        "stale objects that a full collection would free",
        check=Check.EXACT,
    ),
    MetricSpec(
        "instances.*.retained",
        Unit.COUNT,
        Kind.LEVEL,
        "stale objects that survive a full collection",
        check=Check.EXACT,
    ),
    # Pools: kv (tokens), swa (tokens in sliding windows), mamba (state slots), req (rows).
    MetricSpec("pool.*.total", Unit.SLOTS, Kind.LEVEL, "all usable slots of the pool"),
    MetricSpec(
        "pool.*.available", Unit.SLOTS, Kind.LEVEL, "free slots of the pool", higher_is_worse=False
    ),
    MetricSpec(
        "pool.*.evictable",
        Unit.SLOTS,
        Kind.LEVEL,
        "slots of unlocked nodes of the tree, free for eviction",
    ),
    MetricSpec("pool.*.protected", Unit.SLOTS, Kind.LEVEL, "slots of locked nodes of the tree"),
    MetricSpec("pool.*.in_flight", Unit.SLOTS, Kind.LEVEL, "slots held by admitted requests"),
    MetricSpec("pool.*.session_held", Unit.SLOTS, Kind.LEVEL, "slots held by idle sessions"),
    MetricSpec(
        "pool.*.waiting_held",
        Unit.SLOTS,
        Kind.LEVEL,
        "slots held by waiting requests; must be 0",
        check=Check.EXACT,
    ),
    MetricSpec(
        "pool.*.residual",
        Unit.SLOTS,
        Kind.LEVEL,
        "unaccounted slots: neither free nor held by a known holder; must be 0",
        check=Check.EXACT,
    ),
    MetricSpec(
        "container.*.len",
        Unit.COUNT,
        Kind.LEVEL,
        "entries of a list or table of the engine",
    ),
    # Traffic and time.
    MetricSpec("running_requests", Unit.COUNT, Kind.LEVEL, "requests in the running batch"),
    MetricSpec("waiting_requests", Unit.COUNT, Kind.LEVEL, "requests that wait for admission"),
    MetricSpec(
        "max_running_requests",
        Unit.COUNT,
        Kind.LEVEL,
        "largest running batch since the start of the worker",
    ),
    MetricSpec(
        "throughput_tokens_per_s",
        Unit.PER_SECOND,
        Kind.WINDOW,
        "prompt and output tokens computed per second, without those from the cache",
        higher_is_worse=False,
    ),
    MetricSpec(
        "requests_per_s",
        Unit.PER_SECOND,
        Kind.WINDOW,
        "requests finished per second",
        higher_is_worse=False,
    ),
    MetricSpec("ttft_ms_p50", Unit.MILLISECONDS, Kind.WINDOW, "median time to first token (TTFT)"),
    MetricSpec(
        "ttft_ms_p99",
        Unit.MILLISECONDS,
        Kind.WINDOW,
        "99th percentile of the time to first token (TTFT)",
        erratic=True,
    ),
    MetricSpec("itl_ms_p50", Unit.MILLISECONDS, Kind.WINDOW, "median inter-token latency (ITL)"),
    MetricSpec(
        "itl_ms_p99",
        Unit.MILLISECONDS,
        Kind.WINDOW,
        "99th percentile of the inter-token latency (ITL)",
        erratic=True,
    ),
    MetricSpec("step_s", Unit.SECONDS, Kind.COUNTER, "time spent in engine steps"),
    # Parts of a step's time.  Their growth per call or per token is judged as decay.
    MetricSpec("match_s", Unit.SECONDS, Kind.COUNTER, "CPU time in prefix matches"),
    MetricSpec("insert_s", Unit.SECONDS, Kind.COUNTER, "CPU time in cache inserts"),
    MetricSpec("evict_s", Unit.SECONDS, Kind.COUNTER, "CPU time in evictions"),
    MetricSpec(
        "schedule_s",
        Unit.SECONDS,
        Kind.COUNTER,
        "CPU time to form batches and process their results, cache calls included",
    ),
    MetricSpec("forward_s", Unit.SECONDS, Kind.COUNTER, "time in the forward pass of the model"),
    MetricSpec(
        "forward_cpu_s",
        Unit.SECONDS,
        Kind.COUNTER,
        "CPU time in the forward pass of the model",
    ),
    MetricSpec("check_s", Unit.SECONDS, Kind.COUNTER, "CPU time in the engine's own checks"),
    # Requests that live too long, or have no client.
    MetricSpec(
        "oldest_request_s", Unit.SECONDS, Kind.LEVEL, "age of the oldest request in the engine"
    ),
    MetricSpec(
        "oldest_silence_s",
        Unit.SECONDS,
        Kind.LEVEL,
        "longest time since an admitted request got its last token",
    ),
    MetricSpec(
        "requests_without_client",
        Unit.COUNT,
        Kind.LEVEL,
        "requests whose client has left and that were not aborted; must be 0",
        check=Check.EXACT,
    ),
    MetricSpec(
        "steps_with.*", Unit.COUNT, Kind.COUNTER, "engine steps in which the event occurred"
    ),
    MetricSpec(
        "waiting_taken.*.*",
        Unit.SLOTS,
        Kind.COUNTER,
        "slots taken by waiting requests in steps in which the event occurred",
    ),
    MetricSpec(
        "lost_taken.*.*",
        Unit.SLOTS,
        Kind.COUNTER,
        "slots that became unaccounted in steps in which the event occurred",
    ),
    MetricSpec(
        "events.*",
        Unit.COUNT,
        Kind.COUNTER,
        "count of an engine event, such as finishes or evictions",
        check=Check.DRIVER,
    ),
    MetricSpec(
        "scraped.*",
        Unit.COUNT,
        Kind.COUNTER,
        "counter that the target itself reports, such as of its finished requests",
        check=Check.DRIVER,
    ),
    MetricSpec(
        "gauge.*",
        Unit.COUNT,
        Kind.LEVEL,
        "gauge that the target itself reports, such as of its running requests or a pool",
    ),
    MetricSpec(
        "scraped_series",
        Unit.COUNT,
        Kind.LEVEL,
        "series on the metrics page of the target; labels that grow by distinct values never end",
        check=Check.TREND,
        floor_per_hour=1.0,
        handles=True,
        label="series on the metrics page",
        foreign=True,
    ),
    # Our own load client for a third-party target.
    MetricSpec(
        "client_anon_swap_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "private memory of the load client",
        label="private memory of the load client",
        foreign=True,
    ),
    MetricSpec(
        "client_cpu_share",
        Unit.RATIO,
        Kind.LEVEL,
        "share of a processor that the load client takes",
        label="processor time of the load client",
        foreign=True,
    ),
    MetricSpec(
        "client_in_flight",
        Unit.COUNT,
        Kind.LEVEL,
        "requests that the load client has sent and that have not ended",
        label="requests in flight",
        foreign=True,
    ),
    MetricSpec(
        CLIENT_CONNECTIONS,
        Unit.COUNT,
        Kind.LEVEL,
        "connections that the load client has open to the server",
        label="connections of the load client",
        foreign=True,
    ),
    # Costs of work over a window; ``analysis/trend/work_cost.py`` defines them from counters.
    *(_cost(name, meaning) for name, meaning in _COSTS),
    _cost("gc_full_ms", "time of a full collection", erratic=True),
    _cost("gc_share", "share of busy time spent in garbage collection", unit=Unit.RATIO),
    replace(
        _cost("hit_rate", "share of prompt tokens served by the cache", unit=Unit.RATIO),
        higher_is_worse=False,
    ),
    # Further values of a block in `compare`.
    replace(_cost("cpu_ms_per_token", "CPU time per token of a block"), kind=Kind.BLOCK),
    replace(_cost("cpu_ms_per_request", "CPU time per request of a block"), kind=Kind.BLOCK),
    replace(_cost("step_ms_per_token", "time of a step per token of a block"), kind=Kind.BLOCK),
    MetricSpec("peak_rss_bytes", Unit.BYTES, Kind.BLOCK, "largest resident memory during a block"),
    # The observer's own cost.
    MetricSpec(
        "probe_stop_s", Unit.SECONDS, Kind.COUNTER, "time that probes stopped the engine loop"
    ),
    MetricSpec(
        "probe_wait_s",
        Unit.SECONDS,
        Kind.COUNTER,
        "part of probe_stop_s in which the worker waited instead of computing",
        erratic=True,
    ),
    MetricSpec("probe_child_s", Unit.SECONDS, Kind.COUNTER, "CPU time of forked heap scans"),
    MetricSpec(
        "observer_held_bytes",
        Unit.BYTES,
        Kind.LEVEL,
        "private memory of the worker that the bench's own probes have taken and not released",
    ),
    MetricSpec(
        "sampler_late_s",
        Unit.SECONDS,
        Kind.WINDOW,
        "delay of the sample against its schedule",
        erratic=True,
    ),
    MetricSpec(
        "sampler_cost_s",
        Unit.SECONDS,
        Kind.WINDOW,
        "time that the bench process needed for the sample",
        erratic=True,
    ),
    MetricSpec("harness_rss_bytes", Unit.BYTES, Kind.LEVEL, "resident memory of the bench process"),
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
