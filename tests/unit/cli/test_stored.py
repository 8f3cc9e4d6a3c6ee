"""``list runs``, ``history`` and ``prune`` as a user runs them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hybridbench.cli.app import app
from hybridbench.foundation.errors import HybridbenchError
from tests.unit.over_time.stores import DAY_S, add_comparison, add_night, add_run, verdict


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_list_shows_every_state_newest_first(tmp_path: Path) -> None:
    add_run(tmp_path, "judged", 4.0, verdict(kind="LEAK"))
    (add_run(tmp_path, "running", 3.0) / "run.lock").write_text(f"{os.getpid()}\n")
    add_comparison(tmp_path, "compared", 2.0, "SAME")
    add_run(tmp_path, "open", 1.0)
    (add_run(tmp_path, "bad", 0.0) / "manifest.json").write_text("{")

    listed = json.loads(run("list", "runs", "--store", tmp_path, "--format", "json").output)
    table = run("list", "runs", "--store", tmp_path).output

    assert [(one["run_id"], one["answer"]) for one in listed] == [
        ("judged", "LEAK"),
        ("running", "RUNNING"),
        ("compared", "SAME"),
        ("open", "not judged"),
        ("bad", "DAMAGED"),
    ]
    assert [line.split()[0] for line in table.splitlines()] == [one["run_id"] for one in listed]


def test_the_list_shows_nights_where_they_are_put_by_default(tmp_path: Path) -> None:
    add_night(tmp_path / "nightly", "tonight", 1.0, "PASS")

    told = run("list", "runs", "--store", tmp_path)

    assert told.output.split()[:2] == ["nightly/tonight", "PASS"]


def test_the_list_can_be_narrowed_and_says_how_much_it_left_out(tmp_path: Path) -> None:
    add_run(tmp_path, "one", 1.0, verdict(kind="LEAK"))
    add_run(tmp_path, "two", 2.0, verdict())

    told = run("list", "runs", "--store", tmp_path, "--verdict", "leak", "--model", "qwen3-next")

    assert "one" in told.output
    assert "1 of 2 shown." in told.output


def test_an_answer_that_no_result_has_narrows_the_list_to_nothing(tmp_path: Path) -> None:
    add_run(tmp_path, "one", 1.0, verdict())

    told = run("list", "runs", "--store", tmp_path, "--verdict", "hit rate lower")

    assert told.output == "0 of 1 shown.\n"


@pytest.mark.parametrize(
    "word",
    ["fail", "Leak Introduced", "a word of an older version", "TTFT p50 SLOWER", "hit rate LOWER"],
)
def test_the_list_can_be_narrowed_to_every_answer(tmp_path: Path, word: str) -> None:
    add_comparison(tmp_path, "compared", 2.0, word)

    told = run("list", "runs", "--store", tmp_path, "--verdict", word)

    assert "compared" in told.output


def test_a_thousand_runs_are_listed_while_one_waits(tmp_path: Path) -> None:
    for number in range(1000):
        add_run(tmp_path, f"run-{number:04d}", float(number), verdict())

    told = run("list", "runs", "--store", tmp_path, "--format", "json")

    assert len(json.loads(told.output)) == 1000


@pytest.mark.parametrize("words", [("list", "runs"), ("history",), ("prune", "--keep", "1")])
def test_a_store_that_is_not_there_is_one_sentence(tmp_path: Path, words: tuple[str, ...]) -> None:
    told = run(*words, "--store", tmp_path / "nowhere")

    assert isinstance(told.exception, HybridbenchError)
    assert str(tmp_path / "nowhere") in str(told.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("history", "--metric", "wobble"), "choose one of rss.slope"),
        (("history", "--metric", "thruput"), "did you mean throughput"),
        (("history", "--since", "yesterday"), "2026-11-01"),
        (("history", "--since", "2026"), "2026-11-01"),
        (("list", "runs", "--verdict", "LEEK"), "did you mean LEAK?"),
        (("list", "runs", "--verdict", "runing"), "did you mean RUNNING?"),
        (("list", "runs", "--verdict", "leak introducd"), "did you mean LEAK INTRODUCED?"),
        (("list", "runs", "--verdict", "wobble"), "choose one of CLEAN, LEAK, "),
        (("prune",), "needs a rule"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_valid_ones(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    told = run(*words, "--store", tmp_path)

    assert isinstance(told.exception, HybridbenchError)
    assert said in str(told.exception)


def test_a_history_begins_where_it_is_told_to(tmp_path: Path) -> None:
    for day in range(4):
        add_run(tmp_path, f"run-{day}", day * DAY_S, verdict())

    told = run("history", "--store", tmp_path, "--since", "1970-01-03", "--format", "json")

    (series,) = json.loads(told.output)["series"]
    assert [one["run_id"] for one in series["runs"]] == ["run-2", "run-3"]


def test_a_dry_run_of_prune_names_what_would_go_and_why_the_rest_stays(tmp_path: Path) -> None:
    add_run(tmp_path, "old", 0.0, verdict())
    add_run(tmp_path, "new", DAY_S, verdict())

    dry = run("prune", "--store", tmp_path, "--keep", 1, "--dry-run").output
    done = run("prune", "--store", tmp_path, "--keep", 1).output

    assert "nothing was deleted" in dry
    assert any(line.startswith("delete ") and "old" in line for line in dry.splitlines())
    assert any("among the newest 1" in line and "new" in line for line in dry.splitlines())
    assert "1 deleted, 1 kept" in done
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
