"""Cases of a leak diagnosis around a real engine, for test_diagnosis.py.

``python -m tests.unit.worker.diagnosed`` writes what failed in each as JSON.  It is a separate
program because a diagnosis visits every object, and a test process has a million.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from hybridbench.defects.inject import injected
from hybridbench.defects.pr25770_lru_reference_cycle import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.records.heap import SurveyRecord
from hybridbench.records.messages import Diagnose, Diagnosis
from hybridbench.sampling.gc_monitor import GcMonitor
from hybridbench.sampling.heap_survey import SurveyScope
from hybridbench.worker.diagnosis import WorkerDiagnosis
from hybridbench.worker.metrics import WorkerMetrics
from tests.builders import chat, make_engine


@contextmanager
def no_collector() -> Iterator[None]:
    """Disable the collector, so that a case's garbage stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


class Recording(Engine):
    """An engine that keeps a line of each chat and never reads it."""

    lines: list[tuple[str, bytes]]


def small_engine() -> Engine:
    return make_engine(mamba_slots=10, kv_tokens=400)


def diagnosis_of(engine: Engine, scope: SurveyScope) -> WorkerDiagnosis:
    monitor = GcMonitor()
    metrics = WorkerMetrics(engine, monitor, None, engine.counters.as_dict())
    monitor.close()
    return WorkerDiagnosis(engine, metrics, scope)


def ask(diagnosis: WorkerDiagnosis, request: Diagnose) -> Diagnosis:
    diagnosis.ask(request)
    pause = threading.Event()
    while True:
        for answer in diagnosis.advance():
            return answer
        # Leave the CPU to the child.
        pause.wait(0.02)


def survey(diagnosis: WorkerDiagnosis, before: SurveyRecord | None = None) -> SurveyRecord:
    tables = ({}, {}) if before is None else (before.paths, before.classes)
    answer = ask(diagnosis, Diagnose(1, ["survey"], dict(tables[0]), dict(tables[1])))
    assert answer.survey is not None
    assert answer.survey.error == ""
    return answer.survey


def the_historic_cycle_is_named_with_its_attributes(others: list[object]) -> None:
    with injected(DEFECT):
        engine = small_engine()
        diagnosis = diagnosis_of(engine, SurveyScope(lambda: [engine], ballast=others))
        chat(engine, 10)
        before = survey(diagnosis)
        chat(engine, 60, seed=4)
        found = survey(diagnosis, before)

    assert found.cycle_types.get("TreeNode", 0) > 0
    edges = set(found.cycles[0].edges)
    pointers = {"full_prev", "full_next", "mamba_prev", "mamba_next", "parent"}
    assert edges <= {f"TreeNode.{name}" for name in pointers}
    garbage = {row.type_name.rpartition(".")[2]: row.count for row in found.garbage_types}
    dragged = {row.type_name: row.count for row in found.retained if row.dragged}
    left_behind = garbage["TreeNode"] + dragged.get("TreeNode", 0)
    assert left_behind > 0.8 * engine.counters.nodes_evicted * 60 / 70


def what_hangs_from_a_unified_tree_is_no_garbage_and_is_named_with_its_attribute(
    others: list[object],
) -> None:
    with injected(DEFECT):
        engine = make_engine(cache="unified", mamba_slots=30, kv_tokens=2000)
        diagnosis = diagnosis_of(engine, SurveyScope(lambda: [engine], ballast=others))
        chat(engine, 10)
        before = survey(diagnosis)
        evicted = engine.counters.nodes_evicted
        chat(engine, 120, seed=4)
        found = survey(diagnosis, before)

    [hanging] = [row for row in found.retained if row.dragged]
    assert (hanging.type_name, hanging.holder) == ("TreeNode", "TreeNode.mamba_prev")
    assert hanging.count > 0.8 * (engine.counters.nodes_evicted - evicted) > 100
    garbage = {row.type_name.rpartition(".")[2]: row.count for row in found.garbage_types}
    assert garbage.get("TreeNode", 0) < 0.1 * hanging.count


def a_list_that_nobody_reads_is_named_with_its_owner(others: list[object]) -> None:
    engine = small_engine()
    engine.__class__ = Recording
    assert isinstance(engine, Recording)
    engine.lines = []
    diagnosis = diagnosis_of(engine, SurveyScope(lambda: [engine], ballast=others))
    before = survey(diagnosis)
    engine.lines += [(f"line {index}", bytes(200)) for index in range(2000)]

    found = survey(diagnosis, before)

    (row,) = [row for row in found.retained if "lines" in row.holder]
    assert (row.holder, row.entries) == ("Recording.lines", 2000)
    assert row.size_bytes > 2000 * 200
    assert sum(row.count for row in found.retained if row.dragged) == 0


def the_stages_are_answered_in_their_order_and_the_last_flushes_the_cache(
    others: list[object],
) -> None:
    engine = small_engine()
    chat(engine, 4)
    diagnosis = diagnosis_of(engine, SurveyScope(lambda: [engine], ballast=others))

    looked = ask(diagnosis, Diagnose(7, ["rest", "trim"]))
    nodes = engine.pools.tree_cache.live_node_count()
    destroyed = ask(diagnosis, Diagnose(8, ["collect", "flush", "device"]))

    assert (looked.probe_id, [r.name for r in looked.stages]) == (7, ["rest", "trim"])
    assert looked.survey is None
    assert (destroyed.probe_id, [r.name for r in destroyed.stages]) == (8, ["collect", "flush"])
    assert all(r.private_bytes > 2**20 for r in (*looked.stages, *destroyed.stages))
    assert engine.pools.tree_cache.live_node_count() < nodes
    assert not diagnosis.pending


CASES: tuple[Callable[[list[object]], None], ...] = (
    the_historic_cycle_is_named_with_its_attributes,
    what_hangs_from_a_unified_tree_is_no_garbage_and_is_named_with_its_attribute,
    a_list_that_nobody_reads_is_named_with_its_owner,
    the_stages_are_answered_in_their_order_and_the_last_flushes_the_cache,
)


def main() -> None:
    torch.set_num_threads(1)
    wrong = {}
    for case in CASES:
        with no_collector():
            try:
                # Objects of the imports and of earlier cases, which a survey leaves out.
                case(gc.get_objects())
                wrong[case.__name__] = ""
            except Exception:
                wrong[case.__name__] = traceback.format_exc()
    json.dump(wrong, sys.stdout)


if __name__ == "__main__":
    main()
