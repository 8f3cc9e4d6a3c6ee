"""Runs of several processes: each one is judged separately and named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridbench.analysis.facts import processes
from hybridbench.analysis.facts.kv_cache import KvCache
from hybridbench.analysis.facts.processes import process_views
from hybridbench.analysis.judge import judge, judge_so_far
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import MEMORY, Check, declared
from hybridbench.records.events import ProcessStarted, Segment
from hybridbench.records.finding import VerdictKind
from hybridbench.records.verdict import MetricResult, Verdict
from tests.unit.analysis.records import GIB, Run, healthy_record, with_events

API, CORE = ({"role": "api"}, {"role": "core"})


def of_role(record: RunRecord, labels: dict[str, str]) -> dict[str, Series]:
    """The gated series of ``record``, labelled as one process's."""
    own = {}
    for name, series in record.series.items():
        if declared(name).check is Check.TREND:
            whole = labelled(name, labels)
            own[whole] = replace(series, name=whole)
    return own


def two_processes(core: Run, api: Run | None = None) -> RunRecord:
    """A healthy run's counters and events, with the gated series of two processes."""
    shared = healthy_record(api)
    rest = {n: s for n, s in shared.series.items() if declared(n).check is not Check.TREND}
    own = {**of_role(shared, API), **of_role(healthy_record(core), CORE)}
    return replace(shared, series={**rest, **own})


def result(verdict: Verdict, name: str) -> MetricResult:
    (found,) = [one for one in verdict.metrics if one.metric == name]
    return found


def test_the_process_that_leaks_is_named_and_the_others_are_clean() -> None:
    verdict = judge(two_processes(Run(seed=3, leak_bytes_per_h=4 * GIB)))

    assert verdict.kind is VerdictKind.LEAK
    (leak,) = [f for f in verdict.findings if f.verdict is VerdictKind.LEAK]
    assert (leak.kind, leak.subject) == ("growth", labelled(MEMORY, CORE))
    assert result(verdict, labelled(MEMORY, API)).outcome == "CLEAN"
    assert not verdict.failures


def test_each_process_has_the_result_that_it_has_alone() -> None:
    record = two_processes(Run(seed=3, leak_bytes_per_h=4 * GIB))

    together = judge(record)

    for view in process_views(record):
        alone = result(judge(view.record), MEMORY)
        found = result(together, labelled(MEMORY, view.labels))
        assert (found.outcome, found.rate_per_hour) == (alone.outcome, alone.rate_per_hour)


def test_a_leak_of_a_process_says_over_how_many_metrics_of_the_run_it_was_adjusted() -> None:
    verdict = judge(two_processes(Run(seed=3, leak_bytes_per_h=4 * GIB)))

    (leak,) = [f for f in verdict.findings if f.verdict is VerdictKind.LEAK]
    assert [m.metric for m in verdict.metrics if m.q_value is not None] == [
        labelled(MEMORY, API),
        labelled(MEMORY, CORE),
    ]
    assert leak.data["metrics_tested"] == 2


def test_growth_of_a_process_is_explained_by_an_event_of_the_run() -> None:
    record = two_processes(Run(seed=3))
    name = labelled(MEMORY, CORE)
    memory, retracts = record.series[name], record.series["events.retracts"]
    value = 6e8 + 5e7 * np.interp(memory.t_s, retracts.t_s, retracts.value)
    grown = {**record.series, name: replace(memory, value=value)}

    verdict = judge(replace(record, series=grown))

    (leak,) = [f for f in verdict.findings if f.verdict is VerdictKind.LEAK]
    assert (leak.subject, leak.driver) == (name, "retracts")


def test_a_restart_is_a_segment_of_that_process_only() -> None:
    record = with_events(
        two_processes(Run(seed=3)),
        ProcessStarted("api", 10, t_s=0.0),
        ProcessStarted("core", 11, t_s=0.0),
        ProcessStarted("core", 12, t_s=300.0),
    )

    api, core = process_views(record)

    assert api.record.all_events(Segment) == []
    assert [event.t_s for event in core.record.all_events(Segment)] == [300.0]
    # A different level after the restart is not growth.
    name = labelled(MEMORY, CORE)
    memory = record.series[name]
    stepped = replace(memory, value=memory.value + np.where(memory.t_s < 300.0, 0.0, 3e8))
    verdict = judge(replace(record, series={**record.series, name: stepped}))
    assert verdict.kind is not VerdictKind.LEAK
    assert result(verdict, labelled(MEMORY, API)).outcome == "CLEAN"


def test_of_several_processes_the_one_that_grows_fastest_comes_first() -> None:
    slow, fast = Run(leak_bytes_per_h=GIB), Run(seed=3, leak_bytes_per_h=4 * GIB)

    verdict = judge(two_processes(fast, slow))

    assert [f.subject for f in verdict.findings] == [labelled(MEMORY, one) for one in (CORE, API)]


def test_a_restart_of_the_run_is_one_border_of_its_processes() -> None:
    record = with_events(
        two_processes(Run(seed=3)),
        ProcessStarted("core", 11, t_s=0.0),
        Segment(1, t_s=300.0),
        ProcessStarted("core", 12, t_s=300.5),
    )

    (_, core) = process_views(record)

    assert [event.t_s for event in core.record.all_events(Segment)] == [300.0]


def test_the_report_names_the_processes_without_a_steady_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leak = Run(seed=3, steady_s=None, leak_bytes_per_h=4 * GIB)
    record = two_processes(leak, Run(steady_s=None))
    note = "no steady event was seen{}: the judged window may include warm-up, and growth over "

    neither = judge(record)
    full = KvCache(tokens=1e4, most=1e4, computed=1e6, full_s=120.0, full_in_s=None)
    monkeypatch.setattr(processes, "kv_caches", lambda _: {labelled("", CORE): full})
    one = judge(record)
    full = replace(full, full_s=300.0)  # too late to see whether other fills follow
    late = judge(record)

    assert result(late, labelled(MEMORY, CORE)).outcome == "INCONCLUSIVE"
    assert any(said.startswith(note.format("")) for said in neither.notes)
    assert "without a steady event no growth is called a LEAK before 45m" in neither.can_rule_out
    assert result(one, labelled(MEMORY, CORE)).outcome == "LEAK"
    assert any(said.startswith(note.format(" in api")) for said in one.notes)
    assert not any(said.startswith(note.format("")) for said in one.notes)
    assert one.bounds.steady


def test_a_further_process_changes_nothing_of_the_run_itself() -> None:
    alone = healthy_record()
    beside = replace(alone, series={**alone.series, **of_role(healthy_record(Run(seed=3)), CORE)})

    before, after = judge(alone), judge(beside)
    assert after.window_s == before.window_s
    for one in before.metrics:
        assert result(after, one.metric).rate_per_hour == one.rate_per_hour


def test_the_live_view_calls_no_young_process_a_leak() -> None:
    record = two_processes(Run(seed=3, leak_bytes_per_h=4 * GIB)).until(250.0)

    verdict = judge_so_far(record)

    assert result(verdict, labelled(MEMORY, CORE)).outcome == "INCONCLUSIVE"


def short_lived(after: ProcessStarted | None, until_s: float) -> Verdict:
    """The verdict on a healthy process and one that grows slowly and ends at ``until_s``."""
    record = two_processes(Run(seed=3, leak_bytes_per_h=0.1 * GIB))
    series = {
        name: one.between(0.0, until_s) if "core" in name else one
        for name, one in record.series.items()
    }
    starts = [ProcessStarted("core", 7, t_s=1.0), *([] if after is None else [after])]
    return judge(with_events(replace(record, series=series), *starts))


def test_a_process_that_took_another_name_leaves_nothing_undecided() -> None:
    renamed = short_lived(ProcessStarted("api", 7, t_s=300.0), until_s=300.0)
    other = short_lived(ProcessStarted("api", 8, t_s=300.0), until_s=300.0)

    assert renamed.kind is VerdictKind.CLEAN
    assert labelled(MEMORY, CORE) not in [one.metric for one in renamed.metrics]
    assert result(other, labelled(MEMORY, CORE)).outcome == "INCONCLUSIVE"
    assert other.kind is VerdictKind.INCONCLUSIVE, "one that died is not passed over"


def test_a_process_that_ended_too_soon_to_be_judged_leaves_nothing_undecided() -> None:
    verdict = short_lived(None, until_s=8.0)

    assert verdict.kind is VerdictKind.CLEAN
    assert result(verdict, labelled(MEMORY, API)).outcome == "CLEAN"


def test_a_worker_that_is_replaced_before_it_can_be_judged_leaves_nothing_undecided() -> None:
    record = two_processes(Run(seed=3))
    end_s = record.span_s[1]

    starts = np.arange(0.0, end_s, 20.0).tolist()
    events = [ProcessStarted("core", 20 + n, t_s=t_s) for n, t_s in enumerate(starts)]

    verdict = judge(with_events(record, *events))
    once = judge(with_events(record, events[0], events[-1]))

    assert verdict.kind is VerdictKind.CLEAN
    assert labelled(MEMORY, CORE) not in [one.metric for one in verdict.metrics]
    assert result(once, labelled(MEMORY, CORE)).outcome == "CLEAN"


@pytest.mark.parametrize(("name", "outcome"), [("threads", "INCONCLUSIVE"), ("zombies", "LEAK")])
def test_no_warm_up_leaves_more_and_more_zombies(name: str, outcome: str) -> None:
    """A pool of threads fills while a program warms up."""
    record = two_processes(Run(seed=3, steady_s=None), Run(steady_s=None))
    t_s = record.series[labelled(MEMORY, API)].t_s
    handles = Series(labelled(name, API), t_s, np.floor(t_s / 4.0))

    verdict = judge(replace(record, series={**record.series, handles.name: handles}))

    assert result(verdict, handles.name).outcome == outcome


def test_processes_that_pile_up_are_a_leak_and_the_youngest_leave_nothing_undecided() -> None:
    record = two_processes(Run(seed=3))
    memory = record.series[labelled(MEMORY, API)]
    name = labelled("children", API)
    children = Series(name, memory.t_s, np.floor(memory.t_s / 2.0))
    young = {n: one.between(memory.t_s[-1] - 20.0, np.inf) for n, one in record.series.items()}
    series = {n: young[n] if "core" in n else one for n, one in record.series.items()}

    verdict = judge(replace(record, series={**series, name: children}))

    (leak,) = verdict.findings
    assert (leak.verdict, leak.kind, leak.subject) == (VerdictKind.LEAK, "growth", name)
    assert leak.title.startswith("the number of child processes of api grows by 1,8")
    assert labelled(MEMORY, CORE) not in [one.metric for one in verdict.metrics]
