"""An idle, flushed engine's lists and tables are as long as at its start.

This includes those of its modules, classes and functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from hybridbench.engine import containers
from hybridbench.engine.containers import SharedContainers, long_containers
from tests.engine_programs import EngineProgram
from tests.laws import test_engine_graphs, test_engine_host_tier, test_engine_storage

PROGRAMS: Mapping[str, Callable[[], EngineProgram]] = {
    "sessions": lambda: test_engine_graphs.make_program("hybrid", 11, sessions=True),
    "unified, overlapped": lambda: test_engine_graphs.make_program(
        "hybrid, unified tree, overlapped", 7
    ),
    "windows": lambda: test_engine_host_tier.make_program("windows", 3),
    "states on the host": lambda: test_engine_host_tier.make_program("few states on the host", 3),
    "storage": lambda: test_engine_storage.make_program(
        next(iter(test_engine_storage.SQUEEZES)), 3, "best_effort"
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_list_that_nobody_declared_grows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_LONG", 1)
    program = PROGRAMS[name]()
    shared = SharedContainers()
    shared.find()
    before = long_containers(program.engine) | shared.long()

    program.run(120)
    assert program.engine.flush_cache()

    shared.find()
    after = long_containers(program.engine) | shared.long()
    longer = {name for name, length in after.items() if length > before.get(name, 0)}
    # Bounded by the number of step shapes.
    assert longer <= {"SteadyDetector._shapes", "SteadyDetector._noted_used", "KvEventRecorder.log"}
