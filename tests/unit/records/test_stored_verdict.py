"""verdict.json: it follows its schema, has no NaN, and reads back as the same verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.records.finding import Finding, Rate, VerdictKind
from hybridbench.records.json_value import json_text
from hybridbench.records.stored_verdict import (
    VerdictHead,
    read_verdict,
    read_verdict_part,
    verdict_from_json,
    verdict_text,
    verdict_to_json,
)
from hybridbench.records.verdict import MetricResult, Verdict
from hybridbench.rundir.layout import published_schema
from tests.unit.made_findings import a_finding
from tests.unit.report import synthetic

# `jsonschema.validate` would check the schema itself again for each verdict.
VALIDATOR = jsonschema.Draft202012Validator(published_schema("verdict"))
MAKERS = (
    synthetic.leak_verdict,
    synthetic.clean_verdict,
    synthetic.open_verdict,
    synthetic.invalid_verdict,
    synthetic.crash_verdict,
)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_verdict_follows_the_published_schema_and_comes_back(
    make: Callable[[RunRecord], Verdict],
) -> None:
    verdict = make(synthetic.record_of(120.0))

    stored = json.loads(verdict_text(verdict, "run-1"))

    jsonschema.Draft202012Validator.check_schema(published_schema("verdict"))
    VALIDATOR.validate(stored)
    assert stored["exit_code"] == verdict.exit_code
    assert json.loads(verdict_text(verdict_from_json(stored), "run-1")) == stored


any_float = st.floats(allow_nan=True, allow_infinity=True)
finite = st.floats(allow_nan=False, allow_infinity=False)
rates = st.builds(
    Rate,
    any_float,
    any_float,
    any_float,
    st.sampled_from(["B", "slots"]),
    st.just("h"),
    st.just(0.95),
)
findings = st.builds(
    a_finding,
    kind=st.text(max_size=5),
    verdict=st.sampled_from(list(VerdictKind)),
    subject=st.text(max_size=5),
    title=st.text(max_size=5),
    driver=st.none() | st.text(max_size=3),
    rates=st.lists(rates, max_size=2).map(tuple),
    since_s=st.none() | finite,
    data=st.dictionaries(st.text(max_size=3), any_float | st.booleans() | st.none(), max_size=2),
)
results = st.builds(
    MetricResult,
    metric=st.just("rss_bytes"),
    outcome=st.just("CLEAN"),
    reason=st.just(""),
    window_s=st.tuples(finite, finite),
    rate_per_hour=st.none() | rates,
    rate_per_request=st.none() | rates,
    floor_per_hour=any_float,
    limit_per_hour=st.none() | any_float,
    model=st.just("level"),
    fit_t_s=st.lists(any_float, max_size=3).map(tuple),
    needed_s=st.none() | any_float,
)


@settings(max_examples=80, deadline=None)
@given(st.lists(findings, max_size=2).map(tuple), st.lists(results, max_size=2).map(tuple))
def test_no_number_however_odd_breaks_the_schema(
    found: tuple[Finding, ...], metrics: tuple[MetricResult, ...]
) -> None:
    verdict = Verdict(VerdictKind.LEAK, "h", found, metrics, None, "")

    text = verdict_text(verdict, None)

    # ``parse_constant`` is called for NaN and Infinity, which strict readers refuse.
    stored = json.loads(text, parse_constant=pytest.fail)
    VALIDATOR.validate(stored)
    # Writing what was read gives the same text, so reading loses nothing.
    again = verdict_from_json(stored)
    assert verdict_text(again, None) == text


def test_the_word_of_a_headline_is_stored_and_is_not_read(tmp_path: Path) -> None:
    verdict = Verdict(VerdictKind.LEAK, "rss: LEAK: of all", (), (), None, "")
    path = tmp_path / "verdict.json"
    path.write_text(verdict_text(verdict, None))

    stored = json.loads(path.read_text())

    assert stored["headline"] == "LEAK: rss: LEAK: of all"
    assert verdict_from_json(stored).headline == verdict.headline
    assert read_verdict_part(path, VerdictHead).bare_headline == verdict.headline
    # A headline that was stored without its verdict's word stays as it is.
    assert verdict_from_json({**stored, "headline": "it grows"}).headline == "it grows"


def test_an_open_interval_stays_open() -> None:
    rate = Rate(1.0, -math.inf, math.inf, "B", "h")
    finding = a_finding("growth", VerdictKind.LEAK, "rss", "t", rates=(rate,))
    verdict = Verdict(VerdictKind.LEAK, "h", (finding,), (), None, "")

    again = verdict_from_json(verdict_to_json(verdict, None))

    assert again.findings[0].rates == (rate,)


def test_a_damaged_or_later_verdict_is_refused_in_one_sentence(tmp_path: Path) -> None:
    stored = verdict_to_json(synthetic.clean_verdict(synthetic.record_of(120.0)), None)
    file = tmp_path / "verdict.json"
    file.write_text(json_text({**stored, "schema": "hybridbench.verdict/9"}))

    with pytest.raises(RunDirectoryError, match=r"verdict/9.*rebuild it"):
        read_verdict(file)
    with pytest.raises(RunDirectoryError, match="damaged"):
        verdict_from_json({**stored, "headline": 7})
    with pytest.raises(RunDirectoryError, match="damaged"):
        verdict_from_json({key: value for key, value in stored.items() if key != "findings"})


def test_the_head_of_a_verdict_is_read_from_a_run_and_from_a_comparison(tmp_path: Path) -> None:
    run, comparison, torn = (tmp_path / name for name in ("run", "comparison", "torn"))
    run.write_text(verdict_text(synthetic.leak_verdict(synthetic.record_of(120.0)), "run-1"))
    comparison.write_text('{"word": "SLOWER", "headline": "h", "exit_code": 12, "sides": []}')
    torn.write_text('{"verdict": "LE')

    assert read_verdict_part(run, VerdictHead).verdict == "LEAK"
    assert read_verdict_part(comparison, VerdictHead) == VerdictHead("", "SLOWER", "h", 12)
    for unread in (torn, tmp_path / "missing"):
        assert read_verdict_part(unread, VerdictHead) == VerdictHead()


def test_a_stored_verdict_is_read_whole_or_refused(tmp_path: Path) -> None:
    verdict = synthetic.leak_verdict(synthetic.record_of(120.0))
    path = tmp_path / "verdict.json"
    path.write_text(verdict_text(verdict, "run-1"))

    assert read_verdict(path) == verdict
    path.write_text("[]")
    with pytest.raises(RunDirectoryError):
        read_verdict(path)
    with pytest.raises(RunDirectoryError):
        read_verdict(tmp_path / "missing")
