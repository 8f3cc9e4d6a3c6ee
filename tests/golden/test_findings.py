"""Every kind of finding matches its approved file: subject, driver, rates, data and texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pytest

from hybridbench.analysis.findings.kinds import finding_kinds
from hybridbench.records.json_value import JsonValue
from tests.golden.files import APPROVE, Found, found_by_kind, golden

# Linear algebra on another machine may differ in the last digits.
_RELATIVE = 1e-6

GOLDEN = golden()


@pytest.fixture(scope="module")
def found() -> Mapping[str, Found]:
    return found_by_kind()


def differences(was: JsonValue, now: JsonValue, at: str) -> Iterator[str]:
    """Yield one readable line for each difference between two documents."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted({*was, *now}):
            if key not in was or key not in now:
                yield f"{at}/{key} is {'missing' if key in was else 'new'}"
            else:
                yield from differences(was[key], now[key], f"{at}/{key}")
    elif isinstance(was, list) and isinstance(now, list):
        if len(was) != len(now):
            yield f"{at} has {len(now)} items, not {len(was)}"
        for i, (one, other) in enumerate(zip(was, now, strict=False)):
            yield from differences(one, other, f"{at}/{i}")
    elif not _same(was, now):
        yield f"{at} is {now!r}, not {was!r}"


def _same(was: JsonValue, now: JsonValue) -> bool:
    if isinstance(was, bool) or isinstance(now, bool):
        return was is now
    if isinstance(was, int | float) and isinstance(now, int | float):
        return math.isclose(was, now, rel_tol=_RELATIVE)
    return was == now


@pytest.mark.parametrize("kind", GOLDEN)
def test_a_kind_of_finding_is_what_was_approved(kind: str, found: Mapping[str, Found]) -> None:
    now = found.get(kind, {})

    changed = list(differences(dict(GOLDEN[kind]), dict(now), kind))

    assert changed == [], f"if this is right: {APPROVE}"


def test_no_other_kind_is_found(found: Mapping[str, Found]) -> None:
    assert found.keys() - GOLDEN.keys() == set(), f"if this is right: {APPROVE}"


def test_every_declared_kind_has_a_golden_file() -> None:
    assert finding_kinds().keys() - GOLDEN.keys() == set()


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({"a": 1.0}, {"a": 1.0 + 1e-5}),
        ({"a": 1}, {"a": True}),
        ({"a": 0.0}, {"a": 1e-12}),
        ({"a": "b"}, {"a": None}),
        ({"a": [1]}, {"a": [1, 2]}),
        ({"a": 1}, {"b": 1}),
    ],
)
def test_a_difference_is_seen(was: JsonValue, now: JsonValue) -> None:
    assert list(differences(was, was, "x")) == []
    assert list(differences(was, now, "x")) != []
