"""What commands ask another process for is answered here, where it is not what a test is about."""

from __future__ import annotations

import pickle

import pytest

from hybridbench.compare import sides
from hybridbench.defects.defect import Defect
from hybridbench.foundation.errors import HybridbenchError, UsageError
from hybridbench.runs import defect_catalog


@pytest.fixture
def catalog_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog of defects without a process that imports the engine for each question.

    tests/unit/runs/test_defect_catalog.py asks the process.
    """

    # Imports the engine, which most tests of the command line do without.
    from hybridbench.worker.defect_catalog import described

    def described_defects(*names: str) -> tuple[Defect, ...]:
        try:
            answer = pickle.dumps(described(names))
        except HybridbenchError as error:
            raise UsageError(str(error)) from None
        found: tuple[Defect, ...] = pickle.loads(answer)
        return found

    for room in (defect_catalog, sides):
        monkeypatch.setattr(room, "described_defects", described_defects)
