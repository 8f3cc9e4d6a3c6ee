from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hybridbench.compare.alike import children_on, cpu_for_workers

_ASK = "import os; print(sorted(os.sched_getaffinity(0)))"


def _asked() -> str:
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_child_runs_on_its_processors_and_its_parent_stays_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    cpu = max(before)

    with children_on(cpu):
        said = _asked()

    assert said == f"[{cpu}]"
    assert os.sched_getaffinity(0) == before
    with children_on(None):
        assert _asked() == str(sorted(before))


def test_a_failed_start_leaves_nothing_behind() -> None:
    before = os.sched_getaffinity(0)

    with pytest.raises(FileNotFoundError), children_on(min(before)):
        subprocess.run(["/no/such/program"], check=True)

    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("usable", "chosen"), [({0}, None), ({0, 1}, 1), ({2, 7, 5}, 7)])
def test_workers_get_the_last_processor_unless_it_is_the_only_one(
    usable: set[int], chosen: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable)

    assert cpu_for_workers() == chosen
