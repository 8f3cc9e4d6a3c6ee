"""The laws are run over every mutant, in forks of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridbench.defects.mutants import REACHED, candidates

LAW = "tests/laws/test_slots_machine.py"


@pytest.mark.slow
def test_a_law_kills_what_it_notices_and_neither_the_healthy_engine_nor_what_it_never_executes(
    tmp_path: Path,
) -> None:
    slugs = {(c.holder, c.method, c.text): c.slug for c in candidates()}
    lost = slugs["SlotAllocator", "free", "self.free_slots.extend(checked)"]
    elsewhere = slugs["PrefixTree", "_split_node", "parent.children[filed_under] = upper"]

    options = ["-q", "-s", "-p", "tests.laws.mutant_kills", "-p", "no:cacheprovider"]
    options += ["--mutant-store", str(tmp_path), "--mutant-jobs", "2"]
    options += ["--mutants", ",".join((REACHED, lost, elsewhere))]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, LAW],
        env={**os.environ, "HYPOTHESIS_PROFILE": "mutants", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "kills.jsonl").read_text().splitlines()
    killed_by = {kill["mutant"]: kill["killed_by"] for kill in map(json.loads, lines)}
    assert set(killed_by) == {REACHED, lost, elsewhere}
    assert killed_by[lost].startswith(LAW)
    assert killed_by[elsewhere] is None
    assert killed_by[REACHED] is None
