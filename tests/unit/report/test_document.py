"""A document that is not a run: no renderer mentions what it leaves empty."""

from __future__ import annotations

import io

from rich.console import Console

from hybridbench.report.console import render_console
from hybridbench.report.document import Document, DocumentKind, Fact, Gate, GateState, Table
from hybridbench.report.html import render_html
from hybridbench.report.markdown import render_markdown
from hybridbench.report.wording import BADGES


def comparison() -> Document:
    table = Table(
        "Metrics",
        ("metric", "effect", "answer"),
        (("throughput", "+5.1% ± 0.8%", "SLOWER"), ("hit rate", "0", "SAME")),
        numeric=frozenset({1}),
        links=("a side/report.html", ""),
    )
    gate = Gate("throughput", "effect", GateState.FAILED, "4.9% slower")
    return Document(
        kind=DocumentKind.COMPARISON,
        run_id="20261122-compare",
        subtitle="A against B",
        badge=BADGES["SLOWER"],
        meaning="B does less in the same time.",
        exit_code=12,
        headline="B is 4.9% slower.",
        answer=(Fact("Next", "Bisect."),),
        gates=(gate,),
        tables=(table,),
    )


def test_tables_follow_the_answer_in_every_format_and_empty_parts_are_left_out() -> None:
    document = comparison()
    out = io.StringIO()
    Console(file=out, width=100).print(render_console(document))

    texts = (out.getvalue(), render_markdown(document), render_html(document))

    for text in texts:
        assert text.index("B is 4.9% slower.") < text.index("+5.1% ± 0.8%")
        for absent in ("Coverage", "How this was run", "Gated", "profile", "Not seen"):
            assert absent not in text


def test_a_row_leads_where_its_link_says_and_words_of_answer_have_their_shape() -> None:
    document = comparison()

    page, page_md = render_html(document), render_markdown(document)

    assert '<a href="a%20side/report.html">throughput</a>' in page
    assert '<span class="word bad">▼ SLOWER</span>' in page
    assert "[throughput](<a%20side/report.html>)" in page_md
