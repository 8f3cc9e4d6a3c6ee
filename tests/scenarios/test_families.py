"""Defects of state slots, injected into every model family that has recurrent states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hybridbench.selftest.matrix import Row, quick_matrix
from hybridbench.selftest.run import SelfTest
from hybridbench.worker.defect_catalog import described

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def _rows() -> dict[str, Row]:
    """Return the rows of the quick self-test whose finding names state slots."""
    return {
        row.name: row
        for row in quick_matrix(described(()))
        if row.defect is not None and row.signature.subject in {"mamba", "state"}
    }


@pytest.mark.parametrize("model", ["nemotron-h", "falcon-h1"])
@pytest.mark.parametrize("row", _rows().values(), ids=_rows())
def test_lost_state_slots_are_found_whatever_the_model(
    tmp_path: Path, row: Row, model: str
) -> None:
    (outcome,) = SelfTest(tmp_path, 1).run([replace(row, model=model)], lambda outcome: None)

    assert outcome.wrong == ()
