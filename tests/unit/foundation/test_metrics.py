"""The metric registry: one declaration for each name."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from hybridbench.foundation.metrics import METRICS, Check, declared, spec_of


def test_a_family_covers_its_members_and_an_unknown_name_is_an_error() -> None:
    assert declared("pool.mamba.available").name == "pool.*.available"
    assert spec_of("no_such_metric") is None
    with pytest.raises(KeyError, match="no_such_metric"):
        declared("no_such_metric")


def test_no_name_is_covered_twice() -> None:
    for spec in METRICS:
        covering = [
            s.name for s in METRICS if fnmatchcase(spec.name, s.name) or s.name == spec.name
        ]
        assert covering == [spec.name]


def test_every_gated_trend_has_a_practical_threshold() -> None:
    gated = [spec for spec in METRICS if spec.check is Check.TREND]

    assert gated
    assert all(spec.floor_per_hour > 0 for spec in gated)
