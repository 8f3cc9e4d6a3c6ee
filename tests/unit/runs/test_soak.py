"""A soak from outside: what is left of one that did not begin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hybridbench.clock import FakeClock
from hybridbench.errors import ConfigError, HybridbenchError, RunDirectoryError
from hybridbench.runs import soak
from tests.unit.runs.fakes import FakeTarget
from tests.unit.runs.soaks import make_plan


@pytest.mark.parametrize(
    "error", [RunDirectoryError("cannot write: no space"), ConfigError("there is no preset")]
)
def test_a_soak_without_a_sample_leaves_no_run_directory(
    error: HybridbenchError, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = FakeClock()

    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(soak, "BundledTarget", lambda _: FakeTarget(clock))
    monkeypatch.setattr(soak, "boot_worker", refused)

    with pytest.raises(type(error)):
        soak.run_soak(replace(make_plan(), store=tmp_path), clock)

    assert list(tmp_path.iterdir()) == []
