"""verdict.json of a comparison follows its schema, and all derived files are written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from hybridbench.analysis.comparison.records import Comparison
from hybridbench.report.comparison_json import comparison_to_json, write_comparison
from hybridbench.rundir.layout import published_schema
from tests.unit.report.comparisons import comparison, document, judged

MADE = {
    "same": comparison(),
    "slower and leaking": comparison(0.8, leaks=True),
    "several": comparison(several=True),
    "two pairs": comparison(count=2),
    "no blocks": replace(comparison(), blocks=()),
    "stored": replace(comparison(), interleaved=False),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_the_schema_holds_for_every_comparison(made: Comparison) -> None:
    stored = comparison_to_json(made, judged(made), document(made))

    # JSON has no NaN or infinities.
    stored = json.loads(json.dumps(stored, allow_nan=False))
    jsonschema.validate(stored, published_schema("comparison"))


def test_the_schema_itself_is_sound_and_refuses_what_is_not_ours() -> None:
    schema = published_schema("comparison")
    jsonschema.Draft202012Validator.check_schema(schema)
    stored = comparison_to_json(MADE["same"], judged(MADE["same"]), document(MADE["same"]))

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**stored, "outcome": "FINE"}, schema)


def test_all_derived_files_are_written(tmp_path: Path) -> None:
    made = MADE["slower and leaking"]

    write_comparison(tmp_path, made, judged(made), document(made))

    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"verdict.json", "report.html", "report.md", "junit.xml"}
    stored = json.loads((tmp_path / "verdict.json").read_text())
    assert (stored["outcome"], stored["word"], stored["exit_code"]) == (
        "REGRESSION",
        "LEAK INTRODUCED",
        12,
    )
