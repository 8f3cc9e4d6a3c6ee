"""Replace a process that commands start by calls in this process."""

from __future__ import annotations

import pickle

import pytest

from hybridbench.compare import sides
from hybridbench.defects.defect import Defect
from hybridbench.foundation.errors import HybridbenchError, UsageError
from hybridbench.runs import defect_catalog


@pytest.fixture
def catalog_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the catalog of defects without starting a process that imports the engine.

    tests/unit/runs/test_defect_catalog.py tests the process itself.
    """

    # Imported here because it imports the engine, which most command-line tests do not need.
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
