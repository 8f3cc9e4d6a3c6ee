"""cell.json and night.json: written files are read back, and other files are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.over_time.stored import keep_green_run, read_cell, write_record
from hybridbench.records.nightly import NightlyRun, PlanRecord
from hybridbench.rundir.layout import CELL, NIGHTLY
from tests.unit.over_time.planned_runs import (
    GROWTH,
    PLAN,
    attempt,
    finished,
    planned_run,
    rate,
    store,
)


def test_a_rate_without_bounds_is_read_back(tmp_path: Path) -> None:
    open_ = replace(rate(1e6), lower=-math.inf, upper=math.inf)
    ended = attempt("LEAK", replace(GROWTH, rates=(open_,)), growth={"rss_bytes": open_})
    record = finished(planned_run(tmp_path), "one", ended)

    place = store(record, tmp_path / "cells") / CELL

    assert read_cell(place) == record
    assert '"upper": null' in place.read_text("utf-8")


def test_of_the_baselines_in_a_nightly_run_the_oldest_go_and_it_stays(tmp_path: Path) -> None:
    green = NightlyRun(
        plan=PlanRecord(name="test", hash="0", cells=()),
        started_wall_s=1.0, ended_wall_s=2.0, green=True, exit_code=0, word="PASS", headline="",
    )  # fmt: skip
    write_record(tmp_path / NIGHTLY, green)

    for day in range(1, 33):
        later = msgspec.structs.replace(green, started_wall_s=1.0 + day)
        keep_green_run(tmp_path, f"night-{day:02}", later)

    assert (tmp_path / NIGHTLY).is_file()
    assert sorted(path.name for path in tmp_path.glob("*/"))[:2] == ["night-03", "night-04"]


@pytest.mark.parametrize(
    ("before", "after", "refusal"),
    [
        ("hybridbench.cell/1", "hybridbench.cell/9", "has schema 'hybridbench.cell/9'"),
        ('"verdict": "LEAK"', '"verdict": "LEEK"', "is damaged"),
        ('"seed": 1,', '"seed": 99999999999999999999,', "is damaged"),
        ('"kind": "soak"', '"kind": "nap"', "is damaged"),
        ('"cores": 2', '"cores": 99999999999999999999', "is damaged"),
        ('"expires": "2027-', '"expires": "the year 2027-', "is damaged"),
        (
            '"max_rate": "1GiB/h"',
            '"max_rate": "fast"',
            "0.1.0: 'fast' is not a rate",
        ),
        ('"reason": "first"', '"why": "first"', "from before version 0.1.0"),
        ("{", "[", "is not JSON"),
    ],
    ids=["schema", "verdict", "seed", "kind", "cores", "expires", "rate", "older", "no JSON"],
)
def test_what_is_no_cell_is_refused_and_named(
    tmp_path: Path, before: str, after: str, refusal: str
) -> None:
    waiver = (
        "waivers: [{kind: growth, subject: rss, max_rate: 1GiB/h, expires: 2027-11-20, "
        "link: tracker/1, reason: known}]\n"
    )
    record = finished(planned_run(tmp_path, PLAN + waiver), "one", attempt("LEAK", GROWTH))
    place = store(record, tmp_path / "cells") / CELL
    text = place.read_text("utf-8")
    assert before in text
    place.write_text(text.replace(before, after, 1), "utf-8")

    with pytest.raises(RunDirectoryError, match=refusal):
        read_cell(place)
