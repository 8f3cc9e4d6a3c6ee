"""The document of a comparison, in every format: the answer first, then what to do next."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import msgspec
import pytest
import typer
from rich.console import Console
from typer.core import TyperGroup

from hybridbench.analysis.comparison.ratios import check_ratios
from hybridbench.cli.app import app
from hybridbench.foundation.errors import ExitCode
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import OBSERVED, TargetFacts
from hybridbench.report.advice import NEXT
from hybridbench.report.comparison import BISECT_OPTIONS, comparison_document
from hybridbench.report.console import render_console
from hybridbench.report.document import DocumentKind, Table, Tone
from hybridbench.report.formats import FORMATS
from tests.unit.analysis.comparisons import verdict
from tests.unit.report.comparisons import MANIFEST, comparison, document, judged


def test_the_badge_is_the_word_and_the_headline_does_not_repeat_it() -> None:
    made = document(comparison(leaks=True))

    assert made.kind is DocumentKind.COMPARISON
    assert (made.badge.word, made.badge.tone) == ("LEAK INTRODUCED", Tone.BAD)
    assert str(made.headline).startswith("Private memory +3.70 GiB/h; throughput ")
    assert made.exit_code == 12


@pytest.mark.parametrize(
    ("ratio", "word", "tone"),
    [(1.0, "SAME", Tone.GOOD), (0.8, "SLOWER", Tone.BAD), (1.25, "FASTER", Tone.GOOD)],
)
def test_the_tone_follows_the_outcome(ratio: float, word: str, tone: Tone) -> None:
    made = document(comparison(ratio))

    assert (made.badge.word, made.badge.tone) == (word, tone)


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_format_tells_it(name: str) -> None:
    text = FORMATS[name](document(comparison(0.8, leaks=True)))

    assert text
    if name != "benchmark-json":
        assert "LEAK INTRODUCED" in text


def test_the_console_puts_the_effect_before_the_levels() -> None:
    text = FORMATS["console"](document(comparison(0.8)))

    row = next(line for line in text.splitlines() if line.startswith("throughput"))
    assert row.split()[1].startswith("\N{MINUS SIGN}20.")
    assert "(\N{MINUS SIGN}20.5 to \N{MINUS SIGN}19.8)" in row
    assert "SLOWER" in row


def test_an_interrupted_comparison_ends_like_one() -> None:
    made = comparison()
    manifest = msgspec.structs.replace(MANIFEST, exit_code=ExitCode.INTERRUPTED)

    found = comparison_document(made, judged(made), manifest)

    assert found.exit_code == 130


def test_a_single_round_is_in_the_singular() -> None:
    assert " · 1 round · " in str(document(comparison(count=1)).subtitle)


def test_a_regression_between_revisions_asks_for_a_bisection() -> None:
    made = comparison(0.8)
    first, second = made.versions
    made = replace(
        made,
        versions=(
            replace(first, name="git:v1", kind="git"),
            replace(second, name="git:v2", kind="git"),
        ),
    )

    (step,) = [f for f in document(made).answer if f.label == NEXT]
    asked = "hybridbench compare git:v1 git:v2 --profile smoke -q --set=a.b=1 --slice 0 --seed 3"
    manifest = msgspec.structs.replace(MANIFEST, command=tuple(asked.split()))
    (same,) = [
        f for f in comparison_document(made, judged(made), manifest).answer if f.label == NEXT
    ]

    assert step.code == "hybridbench bisect --good v1 --bad v2"
    assert same.code == f"{step.code} --profile smoke --set=a.b=1 --seed 3"


def test_versions_of_one_name_have_gates_and_measures_of_their_own() -> None:
    made = comparison(several=True)
    alike = replace(made, versions=tuple(replace(v, name=".") for v in made.versions))
    verdict, ratios = check_ratios(judged(alike), ["throughput.ratio>0.5"])

    found = comparison_document(alike, verdict, MANIFEST, ratios)

    gates = [(gate.group, gate.name) for gate in found.gates]
    measures = [measure.name for measure in found.measures]
    assert len(gates) == len(set(gates))
    assert len(measures) == len(set(measures))
    assert {". (B) against .", ". (C) against .", "thresholds of . (C)"} <= dict(gates).keys()


def test_a_bisection_gets_every_option_that_it_shares_with_the_comparison() -> None:
    commands = typer.main.get_command(app)
    assert isinstance(commands, TyperGroup)
    compared, bisected = (
        {name for option in commands.commands[word].params for name in option.opts}
        for word in ("compare", "bisect")
    )

    assert set(BISECT_OPTIONS) == {o for o in compared & bisected if o.startswith("--")} - {"--ui"}


def test_an_undecided_comparison_names_the_rounds_that_would_decide() -> None:
    undecided = comparison(1.0 / 1.05, count=3)
    asked = "hybridbench compare . defect:x --block 2s --rounds=3 --max-time 1m --ballast 0"
    manifest = msgspec.structs.replace(MANIFEST, command=tuple(asked.split()))
    made = comparison_document(undecided, judged(undecided), manifest)

    (step,) = [f for f in made.answer if f.label == NEXT]

    assert made.badge.word == "INCONCLUSIVE"
    again = re.fullmatch(
        r"hybridbench compare \. defect:x --block 2s --ballast 0 --rounds (\d+) --max-time (\d+)m",
        step.code,
    )
    assert again is not None
    assert int(again[1]) > 3
    assert int(again[2]) >= 1


@pytest.mark.parametrize(
    ("kind", "advice"), [("bundled", "compare live versions"), (OBSERVED, "Compare longer runs")]
)
def test_stored_runs_that_decide_nothing_do_not_ask_for_longer_blocks(
    kind: str, advice: str
) -> None:
    made = comparison(1.0 / 1.05, count=6)
    target = TargetFacts(kind=kind)
    runs = tuple(
        replace(one, kind="run", manifest=msgspec.structs.replace(one.manifest, target=target))
        for one in made.versions
    )

    answer = document(replace(made, versions=runs, interleaved=False)).answer

    assert [advice in str(fact.text) for fact in answer if fact.label == NEXT] == [True]


def test_after_a_crash_the_next_step_is_its_report() -> None:
    made = comparison()
    crashed = replace(made.versions[1], verdict=verdict(VerdictKind.CRASHED))

    answer = document(replace(made, versions=(made.versions[0], crashed))).answer

    (step,) = [fact for fact in answer if fact.label == NEXT]
    assert str(step.text).startswith("Open the report of run B")


def test_the_finding_brings_its_rates_of_both_versions() -> None:
    (finding,) = document(comparison(leaks=True)).findings

    labels = [fact.label for fact in finding.facts]
    assert finding.badge.word == "INTRODUCED"
    assert labels[:4] == ["In", "Rate in A", "Rate in B", "Difference"]


def test_three_versions_are_told_apart_by_letters() -> None:
    made = document(comparison(0.8, several=True))

    said = [fact.text for fact in made.answer if fact.label == "Speed"]
    assert [str(text)[:2] for text in said] == ["B:", "C:"]
    assert [table.title for table in made.tables] == [
        "Versions",
        "Metrics: B against A",
        "Leaks: B against A",
        "Metrics: C against A",
        "Leaks: C against A",
        "Serving",
        "Thresholds on ratios",
    ]


def test_a_run_directory_is_called_by_its_name_and_not_by_its_path() -> None:
    made = comparison()
    stored = replace(made.versions[1], name="/very/long/results/20261122-run", kind="run")

    text = FORMATS["console"](document(replace(made, versions=(made.versions[0], stored))))

    assert "20261122-run" in text
    assert "/very/long" not in text.replace(" ", "").replace("\n", "")


def test_a_call_is_never_broken_on_a_narrow_terminal() -> None:
    row = (
        "CPU per token",
        "+13.4% (\N{MINUS SIGN}10.1% to over +1,000%)",
        "INCONCLUSIVE",
        "5,001 tok/s",
        "5,364 tok/s",
        "x",
    )
    table = Table("Metrics", ("metric", "change", "call", "A", "B", "role"), (row,))
    out = io.StringIO()

    Console(file=out, width=60).print(
        render_console(replace(document(comparison()), tables=(table,)))
    )

    assert "INCONCLUSIVE" in out.getvalue()


def test_the_metrics_of_both_versions_are_on_a_terminal_of_80_columns() -> None:
    row = (
        "throughput",
        "\N{MINUS SIGN}10.0% (\N{MINUS SIGN}10.5 to \N{MINUS SIGN}9.5)",
        "INCONCLUSIVE",
    )
    table = next(t for t in document(comparison(0.9)).tables if t.title.startswith("Metrics"))
    wide = replace(table, rows=((*row, "30,260 tok/s", "30,012 tok/s", "3%", "primary"),))
    out = io.StringIO()

    Console(file=out, width=80).print(
        render_console(replace(document(comparison()), tables=(wide,)))
    )

    assert "30,012 tok/s" in out.getvalue()
