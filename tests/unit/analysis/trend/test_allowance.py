"""Growth that a cache explains is neither a leak nor CLEAN, until the cache is full."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series, scraped_drivers
from hybridbench.labels import labelled
from hybridbench.metrics import MEMORY
from hybridbench.records.codes import ReasonCode
from hybridbench.records.events import Census, Event, IdleLook
from hybridbench.records.manifest import OBSERVED, Manifest, Options, TargetFacts
from hybridbench.records.verdict import Verdict

MIB, GIB = 2**20, 2**30
SERVER = {"role": "server"}
NAME = labelled(MEMORY, SERVER)


def growing(per_s: float, *events: Event, seconds: float = 4000.0, **budgets: int) -> RunRecord:
    """A server whose memory grows at one speed, as a leak does, and a cache until it is full."""
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
    return RunRecord(manifest, series, events, drivers=scraped_drivers(series))


def why(verdict: Verdict) -> str:
    (result,) = [one for one in verdict.metrics if one.metric == NAME]
    return "" if result.why is None else result.why.code


def test_growth_without_a_budget_is_a_leak() -> None:
    assert judge(growing(3.7e6)).kind == "LEAK"


def test_growth_within_a_budget_is_undecided_and_says_until_when() -> None:
    verdict = judge(growing(1e6, prompt=8 * GIB))

    assert (verdict.kind, why(verdict)) == ("INCONCLUSIVE", ReasonCode.WITHIN_BUDGET)
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
    """Idle points at which the process has 16 KiB of malloc more for each request."""
    return [
        IdleLook(
            role="server",
            pid=7,
            index=i,
            malloc_bytes=int(1e8 + 16384 * 20 * every_s * i),
            blocks=400_000,
            t_s=every_s * (i + 1),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(("budgets", "verdict"), [({}, "LEAK"), ({"c": 8 * GIB}, "INCONCLUSIVE")])
def test_bytes_without_a_name_may_be_the_cache(budgets: dict[str, int], verdict: str) -> None:
    judged = judge(growing(16384 * 20, *looks(), seconds=700.0, **budgets))

    assert [one.verdict for one in judged.findings if one.kind == "bytes-kept"] == [verdict]


def test_bytes_that_are_still_open_are_within_the_budget_as_well() -> None:
    judged = judge(growing(16384 * 20, *looks(), seconds=350.0, c=8 * GIB))

    (one,) = [one for one in judged.findings if one.kind == "bytes-kept"]
    assert "may keep" in one.title
    assert "the c cache of 8.00 GiB is full in" in one.cause


def censuses(bound: int | None, path: str = "app.kept") -> list[Event]:
    return [
        Census(
            role="server",
            pid=7,
            index=i,
            entries={path: int(20 * t_s)},
            bounds={} if bound is None else {path: bound},
            t_s=float(t_s),
        )
        for i, t_s in enumerate(range(30, 3990, 60))
    ]


def test_memory_that_grows_with_a_bounded_cache_is_no_leak_before_it_is_full() -> None:
    verdict = judge(growing(1e6, *censuses(bound=100_000)))

    assert (verdict.kind, why(verdict)) == ("INCONCLUSIVE", ReasonCode.CACHE_FILLS)
    assert "app.kept still fills (78,600 of at most 100,000 entries, full in 17m" in (
        verdict.findings[0].title
    )
    assert judge(growing(1e6, *censuses(bound=78_600))).kind == "LEAK"


def test_a_named_path_is_under_the_budget_only_by_its_name() -> None:
    def leaking(name: str) -> str:
        record = growing(1e6, *censuses(None, path="app.response_store"))
        options = Options(cache_budgets={name: 8 * GIB})
        manifest = msgspec.structs.replace(record.manifest, options=options)
        return judge(replace(record, manifest=manifest)).kind

    assert leaking("prompt") == "LEAK"
    assert leaking("response_store") == "INCONCLUSIVE"
