"""Inputs rebuilt from public leak reports are judged as an engineer would, or refused.

For each input, ``public/cases.tsv`` has the options, the right exit codes, and what the output must
and must not contain.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.foundation.errors import HybridbenchError

PUBLIC = Path(__file__).parent / "public"


def cases() -> list[Any]:
    with (PUBLIC / "cases.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    # Even a dry run of a soak starts a worker.
    slow = [pytest.mark.slow]
    return [
        pytest.param(row, id=row["id"], marks=slow if "soak" in (row["command"] or "") else ())
        for row in rows
    ]


@pytest.mark.parametrize("case", cases())
def test_a_public_report_is_judged_as_an_engineer_would(case: dict[str, str]) -> None:
    file = str(PUBLIC / case["file"])
    command = (case["command"] or f"judge FILE {case['options'] or ''}").split()

    result = CliRunner().invoke(app, [file if word == "FILE" else word for word in command])

    code, said = result.exit_code, result.output
    if isinstance(result.exception, HybridbenchError):
        code, said = int(result.exception.exit_code), str(result.exception)
    said = re.sub(r"\s+", " ", said)
    assert str(code) in case["codes"].split("|"), said
    assert not case["must"] or re.search(case["must"], said), said
    assert not case["never"] or not re.search(case["never"], said), said
