"""What a run served, at the end of each of its reports."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from hybridbench.records.manifest import OBSERVED, TargetFacts
from hybridbench.report.build import build_document
from hybridbench.report.formats import FORMATS
from hybridbench.report.serving import compared_serving, serving_table
from tests.unit.report import synthetic
from tests.unit.report.comparisons import comparison

RECORD = synthetic.record_of(300.0)
VERDICT = synthetic.leak_verdict(RECORD)


def test_a_row_has_the_mean_the_percentiles_and_what_it_rests_on() -> None:
    table = serving_table(VERDICT)

    rows = {row[0]: row[1:] for row in table.texts}
    assert rows["TTFT (ms)"] == ("43.1", "41", "63", "118", "9,120")
    assert rows["Requests/s"] == ("38.8", "", "", "", "9,120")
    assert rows["Errors"] == ("46 (0.5%)", "", "", "", "9,200")
    assert rows["Cache hit rate"] == ("43.2%", "", "", "", "9,150")
    assert rows["ITL (ms)"][-1] == "137,000"


@pytest.mark.parametrize("name", ["console", "markdown", "html", "json"])
def test_every_report_of_a_run_ends_with_the_table(name: str) -> None:
    text = FORMATS[name](build_document(RECORD, VERDICT))

    for cell in ("Serving", "TTFT (ms)", "137,000", "43.2%", "include refusals"):
        assert cell in text


def test_a_run_of_which_nothing_is_known_has_no_table() -> None:
    assert serving_table(replace(VERDICT, serving=())).rows == ()


def test_what_the_metrics_of_a_comparison_have_is_not_told_again_with_other_numbers() -> None:
    versions = comparison().versions
    served = [
        replace(one, verdict=replace(one.verdict, serving=VERDICT.serving)) for one in versions
    ]
    served[1] = replace(
        served[1],
        verdict=replace(served[1].verdict, serving=VERDICT.serving[:1] + VERDICT.serving[-3:-1]),
    )

    stored = {row[0]: row[1:] for row in compared_serving(served, interleaved=False).texts}
    turns = compared_serving(served, interleaved=True).texts

    assert stored["Output tokens/s"] == ("608", "")
    assert stored["End-to-end (ms)"] == ("208", "")
    assert stored["End-to-end (ms) p90"] == ("260", "")
    assert not any(row.startswith(("Requests", "TTFT", "ITL", "Cache")) for row in stored)
    assert [row[0] for row in turns] == ["Errors", "Aborts"]
    # Blocks of a watched server have no latencies, so these rows show them.
    manifest = structs.replace(served[1].manifest, target=TargetFacts(kind=OBSERVED))
    watched = compared_serving(
        [served[0], replace(served[1], manifest=manifest)], interleaved=False
    )
    assert {"TTFT (ms)", "ITL (ms) p50"} <= {row[0] for row in watched.texts}
    assert compared_serving(versions, interleaved=False).rows == ()
