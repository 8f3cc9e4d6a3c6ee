"""Headings of real tools are read with the meaning that they have there."""

from __future__ import annotations

import pytest

from hybridbench.foundation.metrics import Unit
from hybridbench.series.units import (
    Role,
    counts_so_far,
    is_memory,
    meaning_of,
    parse_unit,
)


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("rss_bytes", 1.0),
        ("RSS (KB)", 1024.0),
        ("VmRSS_kB", 1024.0),
        ("Real (MB)", 2.0**20),
        ("mem_mib", 2.0**20),
        ("mem (GB)", 1e9),
        ("process_resident_memory_bytes", 1.0),
        ("cpu_memory_mib", 2.0**20),
        ("allocated_bytes.all.current", 1.0),
        ("dotnet.process.memory.working_set (By)", 1.0),
        ("avg(mem_mib)", 2.0**20),
        ("dotnet.gc.heap.size (By)[gc.heap.generation=gen2]", 1.0),
        ("USED_VRAM (MB)", 2.0**20),
        ("kbanonpg", 1024.0),
        ("Available MBytes", 2.0**20),
        ("system/gpu_0_memory_usage_megabytes", 1e6),
        ("RSS (octets)", 1.0),
        ('container_memory_working_set_bytes{pod="a"}', 1.0),
    ],
)
def test_a_heading_with_a_unit_of_memory_is_a_level_in_bytes(name: str, factor: float) -> None:
    meaning = meaning_of(name)

    assert (meaning.role, meaning.unit) == (Role.LEVEL, Unit.BYTES)
    assert meaning.factor == factor


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("requests_total", Role.COUNTER),
        ("vllm:request_success_total", Role.COUNTER),
        ("tokens", Role.COUNTER),
        ("events.finishes", Role.COUNTER),
        ("cpu_percent", Role.SHOWN),
        ("CPU (%)", Role.SHOWN),
        ("pid", Role.SHOWN),
        ("memory_limit_bytes", Role.SHOWN),
        ("MemoryMax", Role.SHOWN),
        ("memory.high", Role.SHOWN),
        ("memory.total [MiB]", Role.SHOWN),
        ("utilization.memory [%]", Role.SHOWN),
        ('temperature.gpu{index="0"}', Role.SHOWN),
        ('memory.used [MiB]{index="0"}', Role.LEVEL),
        ("CPU(cores)", Role.SHOWN),
        ("GPU use (%)", Role.SHOWN),
        ('gpus.utilization.gpu{index="0"}', Role.SHOWN),
        ("gpu_memory_utilization", Role.LEVEL),
        ("gpu_temp", Role.SHOWN),
        ("Temperature (Sensor edge) (C)", Role.SHOWN),
        ("temp_tables", Role.LEVEL),
        ("node_load15", Role.SHOWN),
        ("load_avg_1m", Role.SHOWN),
        ("node_procs_running", Role.SHOWN),
        ("load_count", Role.LEVEL),
        ("fan.speed", Role.SHOWN),
        ("power_w", Role.SHOWN),
        ("cpuMemUsage", Role.LEVEL),
        ("NET I/O", Role.SHOWN),
        ("BlockIO", Role.SHOWN),
        ("net_io", Role.SHOWN),
        ("", Role.SHOWN),
        ("Unnamed: 0", Role.SHOWN),
        ("MemFree", Role.CACHE),
        ("free memory", Role.CACHE),
        ("system_memory_free_bytes", Role.CACHE),
        ("FreePhysicalMemorySize", Role.CACHE),
        ("jvm_free_memory", Role.LEVEL),
        ('gpus.memory_free{index="0"}', Role.LEVEL),
        ("PR", Role.SHOWN),
        ("wiredTiger.cache.bytes currently in the cache", Role.CACHE),
        (r"\\h\Memory\Cache Bytes", Role.CACHE),
        ("cache_rss_bytes", Role.LEVEL),
        ("itemid", Role.SHOWN),
        ("ns", Role.SHOWN),
        ("latency_ns", Role.LEVEL),
        ("attributes.metadata.attempt", Role.SHOWN),
        ("memstats.NumGC", Role.CUMULATIVE),
        ("YGCT", Role.CUMULATIVE),
        ("process_uptime_seconds", Role.CUMULATIVE),
        ("step", Role.COUNTER),
        ('vllm:num_requests_running{engine="0"}', Role.LOAD),
        ("vllm:num_requests_waiting", Role.LOAD),
        ("sglang:num_queue_reqs", Role.LOAD),
        ("sglang_num_running_reqs", Role.LOAD),
        ("tgi_queue_size", Role.LOAD),
        ("llamacpp:requests_processing", Role.LOAD),
        ("llamacpp:requests_deferred", Role.LOAD),
        ('jvm_memory_used_bytes{area="heap",id="G1 Eden Space"}', Role.SHOWN),
        ('jvm_memory_used_bytes{area="heap",id="G1 Old Gen"}', Role.LEVEL),
        ("nv_inference_pending_request_count", Role.LOAD),
        ("dotnet.gc.heap.total_allocated (By / 1 sec)", Role.SHOWN),
        ("JobID", Role.SHOWN),
        ("memory_stats.max_usage", Role.CUMULATIVE),
        ("listener_count", Role.LEVEL),
        ("cache_entries_count", Role.LEVEL),
        ("queue_time_seconds_count", Role.COUNTER),
        ("input_length_count", Role.COUNTER),
        ("running_requests", Role.LOAD),
        ("http_requests_in_flight", Role.LOAD),
        ("queue_size", Role.LEVEL),
        ("active_sessions", Role.LEVEL),
        ("Total Request Count", Role.COUNTER),
        ("go_memstats_alloc_bytes_total", Role.COUNTER),
        ("page_cache_mib", Role.CACHE),
        ('container/memory/used_bytes{memory_type="evictable"}', Role.CACHE),
        ("%memused", Role.WITH_CACHE),
        ("system.memory.used.bytes", Role.WITH_CACHE),
        ("node.memory.usageBytes", Role.WITH_CACHE),
        ("memory.peak", Role.CUMULATIVE),
        ("total_pgfault", Role.CUMULATIVE),
        ("rchar", Role.CUMULATIVE),
        ("container_memory_failcnt", Role.CUMULATIVE),
        ("rss_total", Role.LEVEL),
        ("thread_count", Role.LEVEL),
        ("MEM USAGE / LIMIT", Role.LEVEL),
        ("open_fds", Role.LEVEL),
        ("AGE", Role.SHOWN),
        ("memory.limit_in_bytes", Role.SHOWN),
        ("rate_limit_buckets", Role.LEVEL),
        ("nodejs_active_handles_total", Role.LEVEL),
        ("gpu_active_time_total", Role.COUNTER),
        ("VmallocUsed", Role.LEVEL),
        ("Percpu", Role.LEVEL),
        (r"\\h\Process(a)\Handle Count", Role.LEVEL),
        ("objects", Role.LEVEL),
        ("jvm.gc.collectors.young.collection_time_in_millis", Role.CUMULATIVE),
        ("osd.op_latency.avgcount", Role.COUNTER),
        ("pg_stat_activity_count", Role.LEVEL),
        ("pgbouncer_pools_client_active_connections", Role.LEVEL),
        ("Innodb_buffer_pool_bytes_data", Role.SHOWN),
        ("jvm_buffer_pool_used_bytes", Role.LEVEL),
        ("avg:system.mem.used{host:a}", Role.WITH_CACHE),
        ("iter", Role.COUNTER),
        ("vllm:iteration_tokens_total_count", Role.COUNTER),
    ],
)
def test_a_name_tells_what_a_column_is_for(name: str, role: Role) -> None:
    assert meaning_of(name).role is role


def test_what_was_allocated_so_far_counts_beside_what_was_freed() -> None:
    names = ("allocated_bytes.all.current", "allocated_bytes.all.freed")

    assert counts_so_far("allocated_bytes.all.allocated", names)
    assert not counts_so_far("allocated_bytes.all.current", names)


@pytest.mark.parametrize(
    ("counters", "levels"),
    [
        ("low high max oom oom_kill", "anon"),
        ("Com_select Connections Questions", "Threads_connected Memory_used Prepared_stmt_count"),
        (
            "lazyfreed_objects rdb_changes_since_last_save total_forks active_defrag_hits",
            "used_memory connected_clients",
        ),
        ("node_netstat_Tcp_InSegs node_vmstat_pgfault", "node_netstat_Tcp_CurrEstab node_load1"),
        ("LayoutCount ScriptDuration", "JSHeapUsedSize Nodes"),
        ("cache.bytes_read_into_cache completedTasks", "activeTasks pending_writes"),
        ("rate_limited_requests retry_count", "rate_limiters"),
        ("objects_allocated total_allocated_objects bytes_since_start", "slots_allocated"),
        ("jvm.gc.memory.allocated jvm.gc.memory.promoted", "jvm.memory.used"),
        ("heap/allocs:bytes heap/frees:bytes", "heap/objects:bytes"),
        ("stot bin bout ereq econ hrsp_5xx req_tot wretr cli_abrt", "scur qcur rate weight"),
        ("num_alloc_retries num_device_alloc num_device_free", "segment.all.current"),
        ("xact_commit blks_hit tup_fetched temp_files deadlocks", "numbackends"),
        ("checkpoints_timed buffers_alloc maxwritten_clean", "sessions"),
        ("kvCacheStats.allocNewBlocks kvCacheStats.reusedBlocks", "kvCacheStats.usedNumBlocks"),
        ("wal_records wal_fpi wal_bytes wal_buffers_full", "rss"),
        ("seq_scan n_tup_ins n_live_tup autovacuum_count", "relations"),
        ("osd.op_in_bytes rx_size_in_bytes ttl.deletedDocuments", "store.size_in_bytes"),
    ],
)
def test_the_names_beside_a_counter_show_the_program_that_counts(
    counters: str, levels: str
) -> None:
    names = [*counters.split(), *levels.split()]

    assert [name for name in names if counts_so_far(name, names)] == counters.split()
    assert not any(map(counts_so_far, ("high", "Connections", "Questions")))


def test_what_the_kernel_holds_for_a_cgroup_includes_what_it_can_free() -> None:
    assert meaning_of("kernel", ("anon", "slab_reclaimable")).role is Role.CACHE
    assert meaning_of("slab_unreclaimable", ("anon",)).role is Role.LEVEL


@pytest.mark.parametrize("name", ["hwm_kib", "peak_rss_mb", "PeakWorkingSet64", "ru_maxrss"])
def test_the_most_memory_so_far_is_a_level_unless_it_is_beside_that_of_now(name: str) -> None:
    assert meaning_of(name, (name, "rss_kib")).role is Role.SHOWN
    assert meaning_of(name, (name, "memory_percent")).role is Role.LEVEL


def test_what_a_cgroup_holds_contains_the_page_cache() -> None:
    assert meaning_of("system_memory.cgroup_current_bytes").role is Role.WITH_CACHE
    assert meaning_of("cgroup.memory.usage").role is Role.WITH_CACHE
    assert meaning_of("cgroup_anon_bytes").role is Role.LEVEL


def test_the_cache_fills_the_free_memory_beside_it() -> None:
    assert meaning_of("fields.free", ("fields.cached",)).role is Role.CACHE
    assert meaning_of("memory.free", ("memory.used",)).role is Role.LEVEL


def test_a_total_that_is_not_memory_may_count() -> None:
    assert meaning_of("total_items").may_count
    assert meaning_of("task_count").may_count
    assert meaning_of("nf_conntrack_count").may_count
    assert meaning_of("heap_allocs").may_count
    assert not meaning_of("total_rss").may_count
    assert not meaning_of("listener_count").may_count
    assert meaning_of("usage.count").may_count
    assert not meaning_of("threads.count").may_count
    assert not meaning_of("total_allocated").may_count
    assert not meaning_of("total_active_sessions").may_count


def test_speed_must_not_fall_and_delay_must_not_rise() -> None:
    assert not meaning_of("throughput").higher_is_worse
    assert meaning_of("throughput").decays
    assert not meaning_of("llamacpp:predicted_tokens_seconds").higher_is_worse
    assert meaning_of("ttft_ms").higher_is_worse
    assert meaning_of("ttft_ms").decays
    assert not meaning_of("rss_bytes").decays


@pytest.mark.parametrize(
    "name",
    [
        "memory.free [MiB]",
        "MemAvailable",
        "kbavail",
        "mem_available",
        "free_slots",
        "num_free_blocks",
        "freeNumBlocks",
        "FBFRE",
        r"\\host\Memory\Available MBytes",
        r"\\host\Arbeitsspeicher\Verfügbare MB",
        "system.mem.usable",
        "unused",
    ],
)
def test_what_is_left_must_not_fall(name: str) -> None:
    assert meaning_of(name).role is Role.LEVEL
    assert not meaning_of(name).higher_is_worse


def test_what_is_used_or_freed_must_not_rise() -> None:
    assert meaning_of("memory.used [MiB]").higher_is_worse
    assert meaning_of("freed").higher_is_worse
    assert meaning_of("free_used_mb").higher_is_worse


def test_memory_of_no_told_unit_is_not_guessed() -> None:
    meaning = meaning_of("rss")

    assert not meaning.known
    assert "--metric 'rss:UNIT'" in meaning.note


def test_memory_is_known_by_a_word_of_its_name() -> None:
    assert all(map(is_memory, ("gpuMemUsage", "mem_used", "used_mem", "memPool")))
    assert not any(map(is_memory, ("members", "group_members", "groupMembers", "remembered")))


def test_a_share_is_not_offered_a_unit_of_memory() -> None:
    assert meaning_of("mem_percent").note == ""


def test_a_unit_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'furlong' is not a unit; write bytes, KiB"):
        parse_unit("furlong")
