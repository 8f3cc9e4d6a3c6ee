"""Finding the end of the initial fill of a target that does not report when it is steady."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.limits import PROFILES
from hybridbench.analysis.facts.steady import first_fill
from hybridbench.analysis.facts.steady import observed_steady as steady_after
from hybridbench.analysis.facts.window import judged_window
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import MEMORY, STEADY
from hybridbench.records.events import Phase, Steady
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import OBSERVED, Manifest, TargetFacts
from tests.unit.analysis.records import Run, healthy_record
from tests.unit.analysis.traces import ar1
from tests.unit.benchmarks.test_recorded import recording

MIB = 2.0**20
T = np.arange(0.0, 900.0, 1.0)


def observed(**memories: FloatArray) -> RunRecord:
    """An observed target with only memory by role, and a counter that starts after 30 s."""
    series = {}
    for number, (role, value) in enumerate(memories.items()):
        name = labelled(MEMORY, {"role": role})
        noise = ar1(np.random.default_rng(number), T, 0.1 * MIB, 6.0)
        series[name] = Series(name, T, value + noise)
    counter = "scraped.requests_total"
    series[counter] = Series(counter, T, np.maximum(0.0, T - 30.0).round())
    return RunRecord(Manifest(target=TargetFacts(kind=OBSERVED)), series, ())


def observed_steady(record: RunRecord) -> float | None:
    return steady_after(record, first_fill(record))


def as_observed(record: RunRecord) -> RunRecord:
    """``record`` as if the engine had never reported a steady state or a phase."""
    silent = [e for e in record.events if not isinstance(e, Steady | Phase)]
    manifest = msgspec.structs.replace(record.manifest, target=TargetFacts(kind=OBSERVED))
    return replace(record, events=silent, manifest=manifest)


def fill(rise_mib: float, until_s: float, per_hour_mib: float = 0.0) -> FloatArray:
    filled = np.clip((T - 30.0) / (until_s - 30.0), 0.0, 1.0)
    return 400 * MIB + rise_mib * MIB * filled + per_hour_mib * MIB * T / 3600.0


@pytest.mark.parametrize(
    ("reported", "begun_s"),
    [
        (T >= 200.0, 200.0),
        # Another of its processes warmed up from 300 s to 400 s.
        ((T >= 60.0) & ((T < 300.0) | (T >= 400.0)), 400.0),
        (T < 500.0, None),
    ],
)
def test_a_server_may_report_that_it_is_steady(
    reported: NDArray[np.bool_], begun_s: float | None
) -> None:
    record = observed(core=400 * MIB + 1000 * MIB * T / 3600.0)
    gauge = Series(f"gauge.{STEADY}", T, reported.astype(float))

    told = replace(record, series={**record.series, gauge.name: gauge})

    assert observed_steady(record) is None
    assert observed_steady(told) == begun_s
    assert (judge(told).kind is VerdictKind.LEAK) == (begun_s is not None)


@pytest.mark.parametrize("per_hour_mib", [0.0, 600.0])
def test_the_knee_of_a_fill_is_where_steady_state_begins(per_hour_mib: float) -> None:
    record = observed(core=fill(200.0, 150.0, per_hour_mib))

    found = observed_steady(record)

    assert found == pytest.approx(150.0, abs=45.0)
    window = judged_window(record)
    assert window is not None
    assert (window.start_s, window.steady) == (found, True)


def test_a_leak_after_a_fill_is_called_within_minutes() -> None:
    verdict = judge(observed(core=fill(200.0, 150.0, 600.0), api=fill(0.0, 100.0)))

    leaks = [f.subject for f in verdict.findings if f.verdict is VerdictKind.LEAK]
    assert leaks == [labelled(MEMORY, {"role": "core"})]


@pytest.mark.parametrize("per_hour_mib", [600.0, 6000.0])
def test_growth_at_one_speed_may_be_a_fill_and_is_no_steady_state(per_hour_mib: float) -> None:
    record = observed(core=fill(0.0, 100.0, per_hour_mib))

    assert observed_steady(record) is None
    assert judge(record).kind is VerdictKind.INCONCLUSIVE


@pytest.mark.parametrize(
    ("rise_mib", "kind"), [(16.0, VerdictKind.INCONCLUSIVE), (120.0, VerdictKind.LEAK)]
)
def test_what_grows_by_more_after_a_quick_start_may_be_a_cache(
    rise_mib: float, kind: VerdictKind
) -> None:
    """llama.cpp's prompt cache fills at 280 MiB/h for a quarter of an hour at 4 requests/s."""
    record = observed(core=fill(rise_mib, 60.0, 280.0))

    window = judged_window(record)
    assert window is not None
    assert window.start_s == observed_steady(record)
    assert window.steady == (kind is VerdictKind.LEAK)
    assert judge(record).kind is kind


def test_memory_that_never_filled_shows_no_steady_state() -> None:
    assert observed_steady(observed(core=fill(0.0, 100.0))) is None


@pytest.mark.parametrize("rise_bytes", [0.0, 4096.0])
def test_constant_memory_is_judged_and_shows_no_fill(rise_bytes: float) -> None:
    record = observed(core=fill(0.0, 100.0))
    name = labelled(MEMORY, {"role": "core"})
    still = Series(name, T, np.where(T > 100.0, 4e8 + rise_bytes, 4e8))

    judged = judge(replace(record, series={**record.series, name: still}))

    assert not judged.failures
    assert [result.outcome for result in judged.metrics] == ["CLEAN"]
    assert observed_steady(replace(record, series={**record.series, name: still})) is None


def test_a_process_without_a_fill_is_past_it() -> None:
    record = observed(api=fill(0.0, 100.0), core=fill(200.0, 150.0))

    assert observed_steady(record) == pytest.approx(150.0, abs=45.0)


def test_a_second_fill_that_ends_is_no_leak() -> None:
    two_caches = fill(100.0, 60.0) + fill(150.0, 500.0)

    assert judge(observed(core=two_caches)).kind is not VerdictKind.LEAK


def test_a_fill_that_took_most_of_the_run_is_not_known_to_be_over() -> None:
    assert observed_steady(observed(core=fill(200.0, 500.0))) is None


def test_after_a_long_fill_the_next_run_is_as_long_as_shows_that_it_was_the_last() -> None:
    verdict = judge(observed(core=fill(200.0, 300.0, 600.0)))
    (memory,) = verdict.metrics

    assert memory.outcome == "INCONCLUSIVE"
    assert "no growth is called a LEAK before 2" in verdict.can_rule_out
    assert memory.needed_s is not None
    # Four times the fill, and not 45 minutes.
    assert 4.0 * 270.0 + 30.0 <= memory.window_s[0] + memory.needed_s <= 1600.0


def test_the_last_process_to_fill_decides() -> None:
    record = observed(api=fill(150.0, 80.0), core=fill(200.0, 200.0))

    assert observed_steady(record) == pytest.approx(200.0, abs=45.0)


def test_without_a_counter_of_work_nothing_says_when_load_began() -> None:
    record = observed(core=fill(200.0, 150.0))
    memory = {n: s for n, s in record.series.items() if not n.startswith("scraped")}

    assert observed_steady(replace(record, series=memory)) is None


def test_an_engine_that_declares_steady_state_is_taken_at_its_word() -> None:
    record = replace(observed(core=fill(200.0, 150.0)), events=(Steady(t_s=400.0),))

    window = judged_window(record)

    assert window is not None
    assert window.start_s == 400.0


def test_a_run_of_the_bundled_engine_without_the_event_keeps_its_window() -> None:
    record = replace(observed(core=fill(200.0, 150.0)), manifest=Manifest())

    window = judged_window(record)

    assert window is not None
    assert not window.steady
    assert window.start_s == pytest.approx(0.1 * float(T[-1]))


@pytest.mark.parametrize("seed", range(3))
def test_what_is_detected_is_near_what_the_engine_declared(seed: int) -> None:
    record = healthy_record(Run(seed=seed))

    assert observed_steady(as_observed(record)) == pytest.approx(120.0, abs=45.0)


@pytest.mark.parametrize("profile", PROFILES)
def test_recordings_of_the_engine_are_clean_without_its_word(profile: str) -> None:
    assert judge(as_observed(recording(profile))).kind is not VerdictKind.LEAK
