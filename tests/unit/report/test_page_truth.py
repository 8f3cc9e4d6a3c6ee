"""No report contradicts itself, in any format."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hybridbench import report
from hybridbench.records.verdict import Verdict
from hybridbench.report.build import build_document
from hybridbench.report.document import NO_TABLE, Document, Table
from hybridbench.report.formats import FORMATS
from hybridbench.report.quantity import SHARE, Quantity, length, quantities, size
from tests.unit.report import synthetic
from tests.unit.report.page_truth import (
    contradictions,
    different,
    impossible,
    not_whole,
    told_twice,
    unknown_in_sentences,
)
from tests.unit.report.pages import PAGES, page

RATE = Quantity("growth.rss", 2.0, "B", (0.0, 60.0), "h", 1.0, 3.0, signed=True)
SHARE_OF = Quantity("freed", 0.4, SHARE, part_of="removed")


@pytest.mark.parametrize("name", PAGES)
def test_no_page_contradicts_itself(name: str) -> None:
    assert contradictions(page(name)) == []


@pytest.mark.parametrize("name", PAGES)
def test_no_legend_of_a_chart_contradicts_a_table(name: str) -> None:
    document = page(name)

    assert list(different([*quantities(document.tables), *quantities(document.charts)])) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_format_prints_each_quantity_by_its_one_text(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = page(name)
    monkeypatch.setattr(Quantity, "__str__", _word)
    expected = {
        "html": document.tables + document.answer,
        "markdown": document.tables + document.answer,
        "github-summary": document.tables + document.answer,
        "json": document.tables + document.answer + document.gates,
        "junit": document.gates,
    }

    for form, parts in expected.items():
        text = FORMATS[form](document)
        assert [q.name for q in quantities(parts) if _word(q) not in text] == []
    console = "".join(FORMATS["console"](document).split())
    assert [q.name for q in quantities(document.answer) if _word(q) not in console] == []


def _word(quantity: Quantity) -> str:
    return f"Q{abs(hash(replace(quantity, signed=False))) % 10**6}Q"


@pytest.mark.parametrize("name", PAGES)
def test_json_has_every_quantity_of_the_page(name: str) -> None:
    document = replace(page(name), charts=(), events=NO_TABLE)
    stored = json.loads(FORMATS["json"](page(name)))["quantities"]

    assert {(q["of"], q["name"]) for q in stored} == {(q.of, q.name) for q in quantities(document)}
    assert all(q["text"] for q in stored)


def _mutated(change: Callable[[Verdict], Verdict]) -> Document:
    record = synthetic.record_of()
    return build_document(record, change(synthetic.leak_verdict(record)))


def _other_rate(verdict: Verdict) -> Verdict:
    """Give the growth finding another rate than its row in the table."""
    growth = verdict.findings[1]
    rate = replace(growth.rates[0], value=1.62 * synthetic.GIB)
    changed = replace(growth, rates=(rate, *growth.rates[1:]))
    return replace(verdict, findings=(verdict.findings[0], changed))


def _other_count(verdict: Verdict) -> Verdict:
    """Report more latencies than finished requests."""
    serving = [replace(r, count=9999) if r.name == "e2e_ms" else r for r in verdict.serving]
    return replace(verdict, serving=tuple(serving))


def _faster(verdict: Verdict) -> Verdict:
    """Report so few requests a second that they took longer than the judged window."""
    return replace(verdict, serving=(replace(verdict.serving[0], value=20.0),))


def _all_found(verdict: Verdict) -> Verdict:
    return replace(verdict, serving=(replace(verdict.serving[-1], value=1.2),))


def _headline(verdict: Verdict) -> Verdict:
    return replace(verdict, headline="LEAK: private memory grows by 1.83 GiB/h")


def _ruling(verdict: Verdict) -> Verdict:
    return replace(verdict, can_rule_out="Growth above 1.67 GiB/h is ruled out (95%, 5m judged).")


@pytest.mark.parametrize(
    "change", [_other_rate, _other_count, _faster, _all_found, _headline, _ruling]
)
def test_one_changed_value_of_a_verdict_is_a_contradiction(
    change: Callable[[Verdict], Verdict],
) -> None:
    assert contradictions(_mutated(lambda verdict: verdict)) == []
    assert len(contradictions(_mutated(change))) >= 1


@pytest.mark.parametrize(
    "other",
    [
        replace(RATE, value=2.1),
        replace(RATE, lower=0.9),
        replace(RATE, unit="nodes"),
        replace(RATE, per="min"),
    ],
)
def test_two_values_of_one_name_and_window_differ(other: Quantity) -> None:
    assert len(list(different([RATE, other]))) == 1
    assert list(different([RATE, replace(other, window=None)])) == []
    assert list(different([RATE, replace(RATE, lower=None, upper=None), RATE.narrow])) == []


@pytest.mark.parametrize(
    "quantity",
    [
        replace(RATE, value=4.0),
        replace(RATE, lower=2.5),
        size("memory", -1.0),
        Quantity("requests", -3),
        Quantity("hit_rate", 1.01, SHARE),
        Quantity("hit_rate", 0.5, SHARE, lower=-0.1, upper=0.6),
        Quantity("change", -0.6, SHARE, lower=-1.2, upper=0.1, signed=True),
        Quantity("throughput.ratio", 0.4, "ratio", lower=-0.2, upper=1.0),
        Quantity("instances-retained.TreeNode", 1.2, lower=-0.3, upper=2.7, signed=True),
    ],
)
def test_what_cannot_be_is_seen(quantity: Quantity) -> None:
    assert len(list(impossible([quantity]))) >= 1
    assert list(impossible([RATE])) == []


def test_parts_must_sum_to_their_whole() -> None:
    parts = [
        SHARE_OF,
        replace(SHARE_OF, name="retained", value=0.6),
        size("a", 3.0, part_of="all"),
        size("b", 4.0, part_of="all"),
        size("all", 7.0),
    ]

    assert list(not_whole(parts)) == []
    assert len(list(not_whole(parts[:1]))) == 1
    assert len(list(not_whole([*parts[2:4], size("all", 8.0)]))) == 1


def test_traffic_lasts_no_longer_than_its_window() -> None:
    window = (0.0, 60.0)
    judged = length("judged", 60.0, window)

    assert list(not_whole([judged, length("traffic", 50.0, window)])) == []
    assert len(list(not_whole([judged, length("traffic", 70.0, window)]))) == 1


def test_rows_of_two_tables_have_the_same_numbers() -> None:
    metrics = Table("Metrics", ("metric", "A", "B"), (("requests", "36.6/s", "36.6/s"),))
    serving = Table("Serving", ("", "A", "B"), (("Requests/s", "16", "16"),))

    assert len(list(told_twice([metrics, serving]))) == 1
    assert (
        list(told_twice([metrics, replace(serving, rows=(("Requests/s", "36.6", "36.6"),))])) == []
    )


def test_a_rate_or_a_length_of_a_headline_is_on_the_page() -> None:
    document = page("LEAK by growth")
    told = list(quantities(document))

    assert list(unknown_in_sentences(document, told)) == []
    wrong = replace(document, headline="Private memory grows by 2.71 GiB/h")
    assert len(list(unknown_in_sentences(wrong, told))) == 1


# Machine formats, an escape, a date, and constants of a method: none of these is measured.
_NOT_SHOWN = {"chart_data", "document_json", "html", "junit", "prometheus"}
_CONSTANTS = {("history", "ALPHA"), ("nightly", "started"), ("history", "change.p_value")}


def test_one_file_alone_gives_numbers_their_text() -> None:
    found = {
        (path.stem, ast.unparse(node.value))
        for path in Path(report.__file__).parent.glob("*.py")
        if path.stem not in _NOT_SHOWN | {"quantity"}
        for node in _formatted(path)
    }

    assert found - _CONSTANTS == set()


def _formatted(path: Path) -> Iterator[ast.FormattedValue]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            yield node
