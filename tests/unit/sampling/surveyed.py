"""Cases of scans, surveys and of reclaiming: ``python -m tests.unit.sampling.surveyed CASE``.

Each runs in its own process, because they visit every object and a test process has a million.
"""

from __future__ import annotations

import gc
import select
import sys
import weakref

from hybridbench.records.heap import StageReading, SurveyRecord
from hybridbench.sampling.heap_scan import ForkScan
from hybridbench.sampling.heap_survey import (
    SurveyScope,
    start_survey,
    survey_of,
)
from hybridbench.sampling.process import own_private_bytes
from hybridbench.sampling.reclaim import ReclaimHooks, destructive_steps, reclaim


class Engine:
    def __init__(self) -> None:
        self.log: list[object] = []


class Link:
    __slots__ = ("next", "parent", "payload")
    next: object
    parent: object

    def __init__(self) -> None:
        self.payload = bytes(3000)


def survey(
    engine: Engine, baseline: SurveyRecord | None = None, work: ReclaimHooks | None = None
) -> SurveyRecord:
    scope = SurveyScope(lambda: [engine])
    before = None if baseline is None else (baseline.paths, baseline.classes)
    child = start_survey(scope, before, work)
    child.wait()
    return survey_of(child)


def make_knots(number: int) -> None:
    for _ in range(number):
        one, other = Link(), Link()
        one.next, other.parent = other, one


def a_survey_names_cycles_and_growth_also_in_a_frozen_process_and_frees_nothing() -> None:
    engine = Engine()
    before = survey(engine)
    make_knots(300)
    engine.log += [[i] * 100 for i in range(400)]
    gc.freeze()

    found = survey(engine, before)

    assert (before.error, found.error) == ("", "")
    assert before.retained == []
    links = {row.type_name.rpartition(".")[2]: row.count for row in found.garbage_types}
    assert links["Link"] == 600
    assert found.garbage_bytes - before.garbage_bytes > 600 * 3000
    assert found.cycle_types["Link"] == 600
    assert found.cycles[0].edges == ("Link.next", "Link.parent")
    (row,) = [row for row in found.retained if row.holder == "Engine.log"]
    assert (row.count, row.entries) == (400, 400)
    assert row.chain == ("Engine.log", "list[*]")
    # The parent still has the garbage that its own collector would find.
    gc.unfreeze()
    assert gc.collect() >= 600


def the_baseline_rehearses_the_stages_in_a_child_of_its_child() -> None:
    engine = Engine()
    make_knots(1500)

    def read() -> StageReading:
        return StageReading(private_bytes=own_private_bytes())

    found = survey(engine, work=ReclaimHooks(read, engine.log.clear))

    after = {stage.name: stage.private_bytes for stage in found.rehearsal}
    assert list(after) == ["rest", "trim", "collect", "flush"]
    assert after["trim"] - after["collect"] > 1500 * 2 * 3000 / 2
    assert gc.collect() >= 3000


def a_rehearsal_that_fails_costs_only_itself() -> None:
    def fail() -> object:
        raise RuntimeError("no flush today")

    found = survey(Engine(), work=ReclaimHooks(StageReading, fail))

    assert found.rehearsal == []
    assert found.error == ""
    assert found.tracked_objects > 1000


def a_survey_that_fails_says_so() -> None:
    def no_roots() -> list[object]:
        raise RuntimeError("nothing to start from")

    child = start_survey(SurveyScope(no_roots))
    child.wait()

    assert survey_of(child).error == "the child ended with status 1"


class Knot:
    """Garbage that only the collector frees."""

    freed = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        Knot.freed += 1


def a_scan_sees_frozen_objects() -> None:
    make_knots(10)
    gc.freeze()
    scan = ForkScan(lambda: {"Link": (Link, 0)}, timeout_s=120.0)
    scan.start()
    while (report := scan.poll()) is None:
        select.select([], [], [], 0.005)
    assert report.error == ""
    assert report.instances["Link"].collectible == 20


def slack_goes_first_then_the_cache_then_garbage_also_what_was_frozen() -> None:
    seen: list[tuple[str, int]] = []

    def read() -> int:
        seen.append(("read", Knot.freed))
        return 100 - len(seen)

    Knot()
    gc.freeze()
    before = Knot.freed
    given = reclaim(read, lambda: seen.append(("flush", Knot.freed)))

    assert [what for what, _ in seen] == ["read", "read", "flush", "read", "read"]
    assert [freed - before for _, freed in seen] == [0, 0, 0, 0, 1]
    assert (given.at_rest_bytes, given.after_collect_bytes) == (99, 95)
    assert gc.get_freeze_count() == 0


def frozen_garbage_goes_as_well() -> None:
    watched = weakref.ref(Knot())
    gc.freeze()
    list(destructive_steps(ReclaimHooks(StageReading, bool)))
    assert watched() is None


if __name__ == "__main__":
    gc.collect()
    gc.disable()
    globals()[sys.argv[1]]()
