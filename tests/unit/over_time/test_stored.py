"""cell.json and night.json: what was written is read back, older forms too; the rest is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from hybridbench.errors import RunDirectoryError
from hybridbench.over_time.merge import find_cells, merged
from hybridbench.over_time.stored import GreenRun, read_cell, read_nightly_run, write_record
from hybridbench.rundir.layout import CELL, NIGHTLY
from tests.unit.over_time.planned_runs import (
    GROWTH,
    NODES,
    PLAN,
    at,
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


def test_what_an_older_plan_did_not_say_is_written_as_its_default(tmp_path: Path) -> None:
    record = finished(planned_run(tmp_path), "one", attempt())
    place = store(record, tmp_path / "cells") / CELL
    stored = json.loads(place.read_text("utf-8"))
    policy = stored["plan"]["policy"]
    older = {**stored["plan"], "policy": {"inconclusive": "neutral", "extend_inconclusive": 2.0}}
    place.write_text(json.dumps({**stored, "plan": older}), "utf-8")

    write_record(place, read_cell(place))

    assert json.loads(place.read_text("utf-8"))["plan"]["policy"] == policy


def test_a_lost_cell_of_an_older_version_has_none(tmp_path: Path) -> None:
    planned = planned_run(tmp_path)
    store(finished(planned, "one", attempt()), tmp_path / "cells")
    place = tmp_path / NIGHTLY
    write_record(place, merged(planned.record, find_cells([tmp_path / "cells"]), []))
    older = place.read_text("utf-8").replace('"cell": null', '"cell": {}')
    place.write_text(older, "utf-8")

    assert [cell.cell is None for cell in read_nightly_run(place).cells] == [False, True]


def test_what_an_older_version_said_in_words_alone_is_read_from_them(tmp_path: Path) -> None:
    waiver = (
        "waivers: [{kind: instances-wait-for-collector, subject: TreeNode, expires: 2027-11-20, "
        "link: tracker/1, reason: 'known: yes'}]\n"
    )
    planned = planned_run(tmp_path, PLAN + waiver)
    store(finished(planned, "one", attempt()), tmp_path / "before")
    store(finished(planned, "one", at(attempt("LEAK", NODES, GROWTH), 1)), tmp_path / "cells")
    green = merged(planned.record, find_cells([tmp_path / "before"]), [])
    run = merged(planned.record, find_cells([tmp_path / "cells"]), [GreenRun("last", green)])
    place = tmp_path / NIGHTLY
    write_record(place, run)
    stored = json.loads(place.read_text("utf-8"))
    for cell in stored["cells"]:
        del cell["throughput_ratio"]
        for entry in cell["findings"]:
            del entry["is_new"], entry["waived_until"]
    place.write_text(json.dumps(stored), "utf-8")

    again = read_nightly_run(place)

    assert again == run
    assert again.cells[0].throughput_ratio == 1.0
    assert [(e.is_new, bool(e.waived_until)) for e in again.cells[0].findings] == [
        (True, True),
        (True, False),
    ]


@pytest.mark.parametrize(
    ("before", "after", "refusal"),
    [
        ("hybridbench.cell/1", "hybridbench.cell/9", "has schema 'hybridbench.cell/9'"),
        ('"verdict": "LEAK"', '"verdict": "LEEK"', "is damaged"),
        ('"seed": 1,', '"seed": 99999999999999999999,', "is damaged"),
        ('"kind": "soak"', '"kind": "nap"', "is damaged"),
        ('"cores": 2', '"cores": 99999999999999999999', "is damaged"),
        ('"expires": "2027-', '"expires": "the year 2027-', "is damaged"),
        ('"max_rate": "1GiB/h"', '"max_rate": "fast"', "is damaged: 'fast' is not a rate"),
        ("{", "[", "is not JSON"),
    ],
    ids=["schema", "verdict", "seed", "kind", "cores", "expires", "rate", "no JSON"],
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
