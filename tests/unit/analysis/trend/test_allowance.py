"""Growth that a cache explains is neither a leak nor CLEAN, until the cache is full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series, observed_drivers
from hybridbench.analysis.trend.reasons import KvCacheIsFilling
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import Census, Event, IdleLook
from hybridbench.records.manifest import OBSERVED, Manifest, Options, TargetFacts
from hybridbench.records.verdict import Verdict

MIB, GIB = 2**20, 2**30
SERVER = {"role": "server"}
NAME = labelled(MEMORY, SERVER)


def growing(per_s: float, *events: Event, seconds: float = 4000.0, **budgets: int) -> RunRecord:
    """A server whose memory grows at a constant rate, like a leak or a cache that is filling."""
    t = np.arange(0.0, seconds, 2.0)
    noise = np.random.default_rng(5).normal(0.0, 1e5, t.size)
    counted = "scraped.requests_total"
    series = {
        NAME: Series(NAME, t, 1e9 + per_s * t + noise),
        counted: Series(counted, t, np.floor(20.0 * t)),
    }
    manifest = Manifest(
        started_wall_s=1.79e9,
        planned_duration_s=seconds,
        target=TargetFacts(kind=OBSERVED),
        options=Options(cache_budgets=budgets),
    )
    return RunRecord(manifest, series, events, drivers=observed_drivers(series))


def why(verdict: Verdict) -> str:
    (result,) = [one for one in verdict.metrics if one.metric == NAME]
    return "" if result.why is None else result.why.code


def test_growth_without_a_budget_is_a_leak() -> None:
    assert judge(growing(3.7e6)).kind == "LEAK"


def test_growth_within_a_budget_is_undecided_and_says_until_when() -> None:
    verdict = judge(growing(1e6, prompt=8 * GIB))

    assert (verdict.kind, why(verdict)) == ("INCONCLUSIVE", "within-budget")
    (found,) = verdict.findings
    assert found.title.startswith(
        "private memory of server: at 977 KiB/s the prompt cache of 8.00 GiB is full in 1h23m: "
        "16:43 UTC; growth so far is 3."
    )


def test_growth_beyond_the_budget_is_a_leak() -> None:
    verdict = judge(growing(3.7e6, prompt=64 * MIB))

    assert verdict.kind == "LEAK"


def test_several_budgets_count_together() -> None:
    verdict = judge(growing(1e6, prompt=3 * GIB, prefix=5 * GIB))

    assert "the prefix and prompt caches of 8.00 GiB are full" in verdict.findings[0].title


def test_all_processes_share_a_budget() -> None:
    record = growing(1e6, prompt=6 * GIB)
    worker = labelled(MEMORY, {"role": "worker"})
    both = {**record.series, worker: replace(record.series[NAME], name=worker)}

    assert judge(record).kind == "INCONCLUSIVE"
    assert judge(replace(record, series=both)).kind == "LEAK"


def test_a_level_process_is_clean_with_a_budget() -> None:
    assert judge(growing(0.0, prompt=8 * GIB)).kind == "CLEAN"


def looks(every_s: float = 60.0, count: int = 10) -> list[Event]:
    """Idle points between which malloc grows by 16 KiB per request."""
    return [
        IdleLook(
            role="server",
            pid=7,
            index=i,
            malloc_bytes=int(1e8 + 16384 * 20 * every_s * i),
            blocks=400_000,
            unreachable=0,
            t_s=every_s * (i + 1),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(("budgets", "verdict"), [({}, "LEAK"), ({"c": 8 * GIB}, "INCONCLUSIVE")])
def test_bytes_without_a_name_may_be_the_cache(budgets: dict[str, int], verdict: str) -> None:
    judged = judge(growing(16384 * 20, *looks(every_s=320.0), **budgets))

    assert [one.verdict for one in judged.findings if one.kind == "bytes-kept"] == [verdict]


def test_bytes_without_a_name_may_be_a_cache_for_as_long_as_memory_may_be_one() -> None:
    judged = judge(growing(16384 * 20, *looks(), seconds=700.0))

    (one,) = [one for one in judged.findings if one.kind == "bytes-kept"]
    assert one.verdict == "INCONCLUSIVE"
    assert "a cache that fills at a constant speed: only 45m would rule that out" in one.cause


def test_bytes_that_are_still_open_are_within_the_budget_as_well() -> None:
    judged = judge(growing(16384 * 20, *looks(), seconds=350.0, c=8 * GIB))

    (one,) = [one for one in judged.findings if one.kind == "bytes-kept"]
    assert "may keep" in one.title
    assert "the c cache of 8.00 GiB is full in" in one.cause


def censuses(bound: int | None, path: str = "app.kept", limit: int | None = None) -> list[Event]:
    return [
        Census(
            role="server",
            pid=7,
            index=i,
            entries={path: int(20 * t_s)},
            bounds={} if bound is None else {path: bound},
            limits={} if limit is None else {path: limit},
            t_s=float(t_s),
        )
        for i, t_s in enumerate(range(30, 3990, 60))
    ]


def test_memory_that_grows_with_a_bounded_cache_is_no_leak_before_it_is_full() -> None:
    verdict = judge(growing(1e6, *censuses(bound=100_000)))

    assert (verdict.kind, why(verdict)) == ("INCONCLUSIVE", "cache-fills")
    assert "app.kept still fills (78,600 of at most 100,000 entries, full in 17m" in (
        verdict.findings[0].title
    )
    assert judge(growing(1e6, *censuses(bound=78_600))).kind == "LEAK"


def test_memory_that_grows_with_what_may_be_a_bounded_cache_is_undecided() -> None:
    verdict = judge(growing(1e6, *censuses(None, limit=1_000_000)))

    (memory,) = (one for one in verdict.findings if one.kind == "undecided")
    assert "app.kept still fills (78,600 of at most 1,000,000 entries, full in " in memory.title
    assert {one.verdict for one in verdict.findings} == {"INCONCLUSIVE"}


def test_a_named_path_is_under_the_budget_only_by_its_name() -> None:
    def leaking(name: str) -> str:
        record = growing(1e6, *censuses(None, path="app.response_store"))
        options = Options(cache_budgets={name: 8 * GIB})
        manifest = msgspec.structs.replace(record.manifest, options=options)
        return judge(replace(record, manifest=manifest)).kind

    assert leaking("prompt") == "LEAK"
    assert leaking("response_store") == "INCONCLUSIVE"


TOKENS, PER_REQUEST = 100_000.0, 50.0
SCHEDULER = {"role": "sglang::scheduler"}


def kv_filling(
    *,
    until_s: float,
    size: float | None = TOKENS,
    role: Mapping[str, str] = SCHEDULER,
    reset: bool = False,
) -> RunRecord:
    """SGLang for 1,400 s under 2 requests a second of 50 new tokens each.

    Until ``until_s``, each request adds a node to the prefix tree and 20 KiB of private memory.
    """
    t = np.arange(0.0, 1400.0, 2.0)
    memory = labelled(MEMORY, role)
    requests = np.floor(2.0 * t)
    noise = np.random.default_rng(5).normal(0.0, 1e5, t.size)
    values = {
        memory: 1e9 + 20_480.0 * np.minimum(requests, 2.0 * until_s) + noise,
        "scraped.sglang:num_requests_total": requests,
        "scraped.sglang:prompt_tokens_total": 60.0 * requests,
        "scraped.sglang:cached_tokens_total": 18.0 * requests,
        "scraped.sglang:generation_tokens_total": 8.0 * requests,
    }
    if size is not None:
        values["gauge.sglang:max_total_num_tokens"] = np.full(t.size, size)
    events: list[Event] = []
    for index, at_s in enumerate(range(50, 1400, 50)):
        nodes = int(2 * min(at_s, until_s))
        events.append(
            Census(
                role=role["role"],
                pid=7,
                index=index,
                entries={"tree.nodes": nodes},
                types={"TreeNode": nodes},
                at_rest=True,
                t_s=float(at_s),
            )
        )
        events.append(
            IdleLook(
                role=role["role"],
                pid=7,
                index=index,
                blocks=400_000 + 5 * nodes,
                malloc_bytes=10**8 + 20_480 * nodes,
                unreachable=0,
                cache_reset=reset,
                t_s=float(at_s),
            )
        )
    series = {name: Series(name, t, value) for name, value in values.items()}
    manifest = Manifest(planned_duration_s=1400.0, target=TargetFacts(kind=OBSERVED))
    return RunRecord(manifest, series, tuple(events), drivers=observed_drivers(series))


@pytest.mark.parametrize("until_s", [1400.0, 900.0])
def test_a_prefix_tree_that_fills_with_the_kv_cache_is_no_leak(until_s: float) -> None:
    """In a process without such a cache, the same growth is a leak."""
    other = kv_filling(until_s=1400.0, size=None, role=SERVER)
    assert judge(other).kind == "LEAK"

    verdict = judge(kv_filling(until_s=until_s, size=PER_REQUEST * 2.0 * until_s))

    assert verdict.kind == ("INCONCLUSIVE" if until_s == 1400.0 else "CLEAN")


def test_the_reason_says_when_the_kv_cache_is_full() -> None:
    verdict = judge(kv_filling(until_s=1400.0, size=100_000.0))

    causes = [one.cause for one in verdict.findings if one.kind == "entries-kept"]
    assert causes == [
        "the server's KV cache of 100,000 tokens may still fill: 139,800 tokens were computed, and "
        "after twice its size it is full, in 10m2s"
    ]


def test_a_kv_cache_of_unknown_size_may_still_fill() -> None:
    """The role shows that there is a KV cache, but not how large it is."""
    verdict = judge(kv_filling(until_s=1400.0, size=None))

    assert (verdict.kind, verdict.findings[0].cause) == (
        "INCONCLUSIVE",
        KvCacheIsFilling(tokens=None, computed=0.0).text(),
    )
    assert judge(kv_filling(until_s=1400.0, size=None, reset=True)).kind == "LEAK"


def test_growth_that_goes_on_after_the_kv_cache_is_full_is_a_leak() -> None:
    assert judge(kv_filling(until_s=1400.0, size=20_000.0)).kind == "LEAK"


def test_more_entries_than_the_kv_cache_has_pages_for_are_a_leak() -> None:
    """Each entry fills at least one page, however few tokens it has."""
    record = kv_filling(until_s=1400.0, size=1_000_000.0)
    assert judge(record).kind == "INCONCLUSIVE"

    pages = "gauge.sglang:num_pages"
    few = Series(pages, np.arange(0.0, 1400.0, 2.0), np.full(700, 1_000.0))
    assert judge(replace(record, series={**record.series, pages: few})).kind == "LEAK"


def test_growth_in_a_process_without_the_kv_cache_is_a_leak() -> None:
    front = {"role": "sglang.launch_server"}
    alone = kv_filling(until_s=1400.0, role=front)
    # It may hold the cache, because no process is known to hold it.
    assert judge(alone).kind == "INCONCLUSIVE"

    holder = labelled(MEMORY, SCHEDULER)
    level = Series(holder, np.arange(0.0, 1400.0, 2.0), np.full(700, 1e9))
    beside = replace(alone, series={**alone.series, holder: level})
    assert judge(beside).kind == "LEAK"


def test_what_stays_after_the_cache_was_emptied_is_a_leak() -> None:
    assert judge(kv_filling(until_s=1400.0, reset=True)).kind == "LEAK"
