"""Lines in which an engine reports a fault become findings; lines that only mention one do not."""

from __future__ import annotations

import pytest

from hybridbench.analysis.findings.engine_log import Trouble, log_findings, storable, trouble_in
from hybridbench.analysis.record import RunRecord
from hybridbench.records.events import EngineLog, Event
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.manifest import Manifest
from tests.unit.made_findings import a_finding

_POOL_LEAK = "ValueError: token_to_kv_pool_allocator memory leak detected! available_size=3189424"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (_POOL_LEAK, Trouble.LEAK),
        ("ValueError: pool memory leak detected! [full] total=9, available=7", Trouble.LEAK),
        ("req_to_token_pool memory leak detected!", Trouble.LEAK),
        ("leaked_full_pages=None, leaked_mamba_pages={191}", Trouble.LEAK),
        ("==12==ERROR: LeakSanitizer: detected memory leaks", Trouble.LEAK),
        ("Watchdog timeout (self.watchdog_timeout=300)", Trouble.WATCHDOG),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL", Trouble.WATCHDOG),
        ("Hang detected on rank 0 in PyExecutor.", Trouble.WATCHDOG),
        ("No available shared memory broadcast block found in 60 seconds.", Trouble.WATCHDOG),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50 MiB",
            Trouble.OUT_OF_MEMORY,
        ),
        ("Decode out of memory. Try to lower your batch size.", Trouble.OUT_OF_MEMORY),
        ("Out of memory: Killed process 4242 (python3) total-vm:9kB", Trouble.OUT_OF_MEMORY),
        (
            "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 9",
            Trouble.OUT_OF_MEMORY,
        ),
        ("terminate called after throwing an instance of 'std::bad_alloc'", Trouble.OUT_OF_MEMORY),
        ("free(): invalid pointer", Trouble.DOUBLE_FREE),
        ("double free or corruption (fasttop)", Trouble.DOUBLE_FREE),
        ("AssertionError: SWA Pool Mem Leak Detected! [swa] total=9", Trouble.LEAK),
        ("KV double free: sub-pool 0 has 3 duplicate pages.", Trouble.DOUBLE_FREE),
        ("KV page use-after-free: 4 owner page refs are in the free pool", Trouble.DOUBLE_FREE),
    ],
)
def test_the_words_of_real_engines_are_heard(line: str, words: Trouble) -> None:
    assert trouble_in(line) is words
    assert trouble_in(storable(line)) is words, "what is stored says the same"


@pytest.mark.parametrize(
    "line",
    [
        "no memory leak detected",
        "0 pages leaked",
        "Memory leak detected: 0",
        "idle check: without a memory leak found so far",
        "collected tests/test_memory_leak.py",
        'File "leak_detector.py", line 3, in check_memory_leak',
        '    raise ValueError("memory leak detected")',
        "watchdog timeout set to 300 s",
        "server_args=ServerArgs(watchdog_timeout=300, mem_fraction_static=0.8)",
        "starting the watchdog thread",
        "lower --mem-fraction-static to avoid out of memory",
        "a large batch may run out of memory",
        "resource_tracker: There appear to be 3 leaked semaphore objects to clean up at shutdown",
        "destroy_process_group() was not called before exit, which can leak resources",
        "using leaky_relu",
        "nanobind: leaked 64 types!",
        'nanobind: - leaked type "vllm.Config"',
        "[Mem Check (BUSY)] [full] total=9, available=1, evictable=8, protected=0, session_held=0",
        "hybridbench: memory leak detected in the worker",
        "KV cache pool is full. Retract requests.",
    ],
)
def test_harmless_mentions_are_not(line: str) -> None:
    assert trouble_in(line) is None


def said(t_s: float, text: str, count: int = 1) -> EngineLog:
    return EngineLog(text, count, t_s=t_s)


def record(*events: Event) -> RunRecord:
    return RunRecord(Manifest(), {}, events)


def finding(verdict: VerdictKind) -> Finding:
    return a_finding("other", verdict, "engine", "something else")


def test_one_finding_tells_the_text_how_often_and_when() -> None:
    lines = [said(10.0, _POOL_LEAK, count=1), said(70.0, _POOL_LEAK.replace("318", "99"), count=10)]

    (found,) = log_findings(record(*lines, said(5.0, "hello")), [])

    assert found.kind == "engine-said"
    assert found.data["words"] == Trouble.LEAK
    assert found.data["lines"] == [_POOL_LEAK]
    assert (found.data["count"], found.data["last_s"]) == (10, 70.0)
    assert found.since_s == 10.0


@pytest.mark.parametrize(
    ("line", "known", "verdict"),
    [
        (_POOL_LEAK, None, VerdictKind.INVARIANT),
        (_POOL_LEAK, VerdictKind.LEAK, VerdictKind.LEAK),
        (_POOL_LEAK, VerdictKind.CRASHED, VerdictKind.INVARIANT),
        ("CUDA out of memory.", VerdictKind.CRASHED, VerdictKind.CRASHED),
        ("CUDA out of memory.", None, VerdictKind.INVARIANT),
        ("Watchdog timeout", VerdictKind.CRASHED, VerdictKind.CRASHED),
        ("double free", VerdictKind.LEAK, VerdictKind.INVARIANT),
    ],
)
def test_an_engines_word_weighs_what_other_findings_bear_out(
    line: str, known: VerdictKind | None, verdict: VerdictKind
) -> None:
    others = [] if known is None else [finding(known)]

    (found,) = log_findings(record(said(1.0, line)), others)

    assert found.verdict is verdict
