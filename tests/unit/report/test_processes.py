"""The table of a run's processes."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import Event, ProcessEnded, ProcessStarted
from hybridbench.records.manifest import OBSERVED, Manifest, TargetFacts
from hybridbench.records.verdict import MetricResult
from hybridbench.report.build import build_document
from hybridbench.report.processes import processes_table

MIB = 2.0**20
T = np.arange(0.0, 600.0)


def of_role(role: str, **metrics: np.ndarray) -> dict[str, Series]:
    names = {labelled(metric, {"role": role}): value for metric, value in metrics.items()}
    return {name: Series(name, T, value) for name, value in names.items()}


def record(events: tuple[Event, ...] = ()) -> RunRecord:
    """A smaller engine that grows by 60 MiB, and a larger server that was replaced."""
    noise = np.random.default_rng(1).normal(0.0, 0.02 * MIB, T.size)
    series = {
        **of_role(
            "engine",
            **{MEMORY: 100 * MIB + 0.1 * MIB * T + noise},
            threads=np.full(T.size, 8.0),
            open_fds=np.where(T < 300, 20.0, 25.0),
            worker_cpu_s=0.5 * T,
        ),
        **of_role("server", **{MEMORY: np.where(T < 400, 900.0, 300.0) * MIB}),
    }
    started = (
        ProcessStarted("server", 11, t_s=0.0),
        ProcessStarted("engine", 12, t_s=0.0),
        ProcessEnded("server", 11, signal=9, t_s=400.0),
        ProcessStarted("server", 13, t_s=400.0),
    )
    manifest = Manifest(target=TargetFacts(kind=OBSERVED))
    return RunRecord(manifest, series, (*started, *events))


def rows(of: RunRecord) -> list[dict[str, str]]:
    table = processes_table(of, judge(of))
    return [dict(zip(table.columns, texts, strict=True)) for texts in table.texts]


def test_a_row_has_memory_growth_and_what_else_a_process_holds() -> None:
    (engine,) = [row for row in rows(record()) if row["process"] == "engine"]

    assert engine["private memory"].startswith("10")
    assert engine["private memory"].endswith("→ 160 MiB")
    assert "MiB/h" in engine["growth"]
    assert " to " in engine["95% interval"]
    assert engine["threads"] == "8"
    assert engine["open files"] == "20 → 25"
    assert engine["CPU"] == "50%"
    assert (engine["pid"], engine["restarts"]) == ("12", "0")


def test_device_memory_has_a_column_where_a_process_has_any() -> None:
    of = record()
    on_device = of_role("engine", device_used_bytes=np.full(T.size, 700 * MIB))
    with_device = replace(of, series={**of.series, **on_device})

    assert "device memory" not in rows(of)[0]
    assert [row["device memory"] for row in rows(with_device)] == ["not seen", "700 MiB"]


def test_a_process_that_was_replaced_is_the_last_one_of_its_role() -> None:
    first, second = rows(record())

    assert [first["process"], second["process"]] == ["server", "engine"], "the largest first"
    assert first["private memory"] == "300 MiB"
    assert (first["pid"], first["restarts"]) == ("13", "1")
    assert first["threads"] == "not seen"


def test_a_process_that_has_ended_says_how() -> None:
    def pid(event: ProcessEnded) -> str:
        return rows(record((replace_time(event),)))[0]["pid"]

    assert pid(ProcessEnded("server", 13, signal=9)) == "13, killed by SIGKILL"
    assert pid(ProcessEnded("server", 13, code=3)) == "13, exit code 3"
    assert pid(ProcessEnded("server", 13)) == "13, ended"
    assert pid(ProcessEnded("server", 13, signal=4711)) == "13, killed by signal 4711"


def replace_time(event: ProcessEnded) -> ProcessEnded:
    return ProcessEnded(event.role, event.pid, code=event.code, signal=event.signal, t_s=599.0)


def test_a_process_that_leaks_comes_first() -> None:
    of = record()
    verdict = judge(of)
    leaking = tuple(
        replace_outcome(result) if "engine" in result.metric else result
        for result in verdict.metrics
    )

    table = processes_table(of, replace(verdict, metrics=leaking))

    assert table.texts[0][0] == "engine"


def replace_outcome(result: MetricResult) -> MetricResult:
    return msgspec.structs.replace(result, outcome="LEAK")


def test_a_run_of_one_process_has_no_such_table() -> None:
    alone = {MEMORY: Series(MEMORY, T, 100 * MIB + T)}
    of = RunRecord(Manifest(), alone, ())

    assert not processes_table(of, judge(of)).rows


def test_the_table_is_part_of_the_report() -> None:
    of = record()

    document = build_document(of, judge(of))

    assert "Processes" in [table.title for table in document.tables if table.rows]
