"""A nightly run as a document for console, HTML, Markdown, JUnit and step summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from hybridbench.over_time.comparer import THROUGHPUT
from hybridbench.records.finding import VerdictKind
from hybridbench.records.nightly import (
    CellFinding,
    CellResult,
    CellState,
    NightlyRun,
    counted,
)
from hybridbench.report.document import (
    Document,
    DocumentKind,
    Fact,
    FindingText,
    Gate,
    GateState,
    Table,
)
from hybridbench.report.quantity import (
    TIMES,
    Form,
    Quantity,
    Text,
    joined,
    length,
)
from hybridbench.report.wording import BADGES, finding_name, named_rates, rate_facts
from hybridbench.rundir.layout import NIGHTLY

_GATE: Final = {
    CellState.PASS: GateState.PASSED,
    CellState.FAIL: GateState.FAILED,
    CellState.NEUTRAL: GateState.SKIPPED,
    CellState.MISSING: GateState.ERROR,
}
# Verdicts that say nothing about the engine.
_NO_ANSWER: Final = ("CRASHED", "INVALID", "MISSING")
_PARTIAL: Final = (
    "No cell failed, but the budget left out cells of the plan, which were not tested; "
    "--allow-partial accepts that."
)
NOWHERE: Final[Mapping[str, str]] = {}
_MEANING: Final = {
    "PASS": "Every cell has a verdict, and none failed.",
    "FAIL": "A cell failed or has no verdict; the exit code is that of the worst cell.",
    "INCONCLUSIVE": "No cell failed, and none was decided: this run is INCONCLUSIVE.",
}


def nightly_document(run: NightlyRun, name: str, pages: Mapping[str, str] = NOWHERE) -> Document:
    """Return the report of ``run``.

    Args:
        run: the merged run.
        name: the name of its directory.
        pages: by cell id, the path from that directory to the report of the deciding run.
    """
    return Document(
        kind=DocumentKind.NIGHTLY,
        run_id=name,
        subtitle=_subtitle(run),
        badge=BADGES[run.word],
        meaning=_meaning(run),
        exit_code=run.exit_code,
        headline=run.headline,
        answer=tuple(_answer(run)),
        gates=tuple(_gates(run)),
        tables=(_cells_table(run, pages), _findings_table(run), _changes_table(run)),
        findings=tuple(_finding(cell, entry) for cell, entry in _entries(run)),
        notes=(*run.notes, *(f"{c.id}: {note}" for c in run.cells for note in c.notes)),
        provenance=(_provenance(run),),
        data_file=NIGHTLY,
        suite=f"night {run.plan.name}",
    )


def _meaning(run: NightlyRun) -> str:
    passed = any(cell.state is CellState.PASS for cell in run.cells)
    return _PARTIAL if run.word == "INCONCLUSIVE" and passed else _MEANING[run.word]


def _subtitle(run: NightlyRun) -> Text:
    parts: list[Text] = [f"plan {run.plan.name} {run.plan.hash}"]
    if run.started_wall_s:
        started = datetime.fromtimestamp(run.started_wall_s, UTC)
        parts.append(f"{started:%Y-%m-%d %H:%M} UTC")
        parts.append(length("night", run.ended_wall_s - run.started_wall_s))
    return joined(" · ", parts)


def _answer(run: NightlyRun) -> Iterator[Fact]:
    if run.rehearsed:
        said = (
            f"{', '.join(run.rehearsed)} injected into every soak, so FAIL is expected; this run "
            "is never used as a baseline"
        )
        yield Fact("Rehearsal", said)
    for cell in run.cells:
        if cell.state in (CellState.FAIL, CellState.MISSING):
            failed = cell.state is CellState.FAIL
            word = f"{cell.word}: " if failed else ""
            yield Fact("Failed" if failed else "Missing", f"{cell.id}: {word}{cell.headline}")
    entries = list(_entries(run))
    fresh = [
        (f"{entry.finding.subject} ({entry.finding.kind})", "", cell.id)
        for cell, entry in entries
        if entry.is_new and _counts(entry)
    ]
    if fresh:
        yield Fact("New since the last green run", _by_cells(fresh))
    waived = [(e.finding.subject, f" {e.waived}", cell.id) for cell, e in entries if e.waived]
    if waived:
        yield Fact("Waived", _by_cells(waived))
    if run.plan.false_alarms:
        yield Fact("Expected false alarms", run.plan.false_alarms)


def _by_cells(found: Iterable[tuple[str, str, str]]) -> str:
    """Join (subject, end, cell) items, cells grouped: ``TreeNode in one, two until 2027-01-31``."""
    cells: dict[tuple[str, str], list[str]] = {}
    for what, end, cell in found:
        cells.setdefault((what, end), []).append(cell)
    return "; ".join(f"{what} in {', '.join(where)}{end}" for (what, end), where in cells.items())


def _gates(run: NightlyRun) -> Iterator[Gate]:
    states = {"PASS": GateState.PASSED, "FAIL": GateState.FAILED}
    state = states.get(run.word, GateState.SKIPPED)
    yield Gate("verdict", run.plan.name, state, f"{run.word}: {run.headline}")
    for cell in run.cells:
        state = GateState.ERROR if cell.word in _NO_ANSWER else _GATE[cell.state]
        lines = [*(entry.finding.title for entry in cell.findings), *cell.changes, *cell.notes]
        yield Gate(
            name=cell.id,
            group="cell",
            state=state,
            text=f"{cell.id}: {cell.word}: {cell.headline}",
            detail="\n".join(lines),
            measured_s=cell.judged_s or None,
        )
        seen = set()
        for entry in cell.findings:
            gate = f"{entry.finding.kind} of {entry.finding.subject}"
            # The same kind and subject may be found with two drivers; only the first has a gate.
            if entry.waived and gate not in seen:
                seen.add(gate)
                text = f"{entry.finding.title}; waived {entry.waived}"
                yield Gate(gate, cell.id, GateState.SKIPPED, text)
    for name in run.plan.left_out:
        yield Gate(name, "cell", GateState.SKIPPED, f"{name}: left out by the budget")


def _cells_table(run: NightlyRun, pages: Mapping[str, str]) -> Table:
    left_out = tuple((name, "left out", "", "", "", "", "") for name in run.plan.left_out)
    rows = (*(_cell_row(cell) for cell in run.cells), *left_out)
    columns = ("cell", "result", "verdict", "judged", "runs", "computed tok/s", "vs last green")
    note = "A cell without a verdict is MISSING, which is never a pass."
    links = (*(pages.get(cell.id, "") for cell in run.cells), *("" for _ in left_out))
    return _filled(Table("Cells", columns, rows, frozenset({3, 4, 5, 6}), note, links=links))


def _filled(table: Table) -> Table:
    """Drop the last columns of ``table`` if they are empty in every row."""
    filled = [i for i in range(len(table.columns)) if any(row[i] for row in table.rows)]
    end = 1 + max(filled, default=-1)
    rows = tuple(row[:end] for row in table.rows)
    numeric = table.numeric & frozenset(range(end))
    return replace(table, columns=table.columns[:end], rows=rows, numeric=numeric)


def _cell_row(cell: CellResult) -> tuple[Text, ...]:
    throughput, ratio = cell.metrics.get(THROUGHPUT), cell.throughput_ratio
    return (
        cell.id,
        cell.state.upper() if cell.state is not CellState.NEUTRAL else "neutral",
        cell.word,
        length("judged", cell.judged_s, of=cell.id) if cell.judged_s else "",
        Quantity("attempts", len(cell.attempts), of=cell.id),
        "" if throughput is None else Quantity(THROUGHPUT, throughput, of=cell.id, form=Form.PLAIN),
        ""
        if ratio is None
        else Quantity(f"{THROUGHPUT}.ratio", ratio, TIMES, of=cell.id, form=Form.TIMES),
    )


def _rates(cell: CellResult, entry: CellFinding) -> tuple[Quantity, ...]:
    return named_rates(finding_name(entry.finding), entry.finding, of=cell.id)


def _findings_table(run: NightlyRun) -> Table:
    rows: list[tuple[Text, ...]] = []
    for cell, entry in _entries(run):
        found = entry.finding
        if found.verdict == VerdictKind.INCONCLUSIVE and not entry.waived:
            continue
        # The finding's details have the interval; here it would not fit a terminal.
        rates = _rates(cell, entry)
        rate = rates[0].narrow if rates else ""
        # Only the date; the finding's details have the reason and the link.
        until = entry.waived_until
        said = entry.why_not if until is None else f"until {until.isoformat()}"
        badge = "WAIVED" if entry.waived else found.verdict
        rows.append((cell.id, badge, found.kind, found.subject, rate, entry.news, said))
    rows += [
        (cell.id, "", gone.kind, gone.subject, "", f"gone since {cell.baseline}", "")
        for cell in run.cells
        for gone in cell.gone
    ]
    columns = ("cell", "", "kind", "subject", "rate", "vs last green", "waiver")
    return _filled(Table("Findings by cell", columns, tuple(rows)))


def _changes_table(run: NightlyRun) -> Table:
    rows = []
    for cell in run.cells:
        if cell.baseline:
            said = "; ".join(cell.changes) or "no growth"
            rows.append((cell.id, cell.baseline, said))
    alone = len(run.cells) - len(rows)
    note = f"Without a green run to compare with: {counted(alone)}. " if alone else ""
    note += (
        "Compared only with a green run of the same work on the same class of machine. Rates are "
        "listed where their intervals do not overlap. Nightly runs are not interleaved: the "
        "machine's own drift is in the ratio of their throughput."
    )
    return Table(
        "Compared with the last green run", ("cell", "run", "change"), tuple(rows), note=note
    )


def _finding(cell: CellResult, entry: CellFinding) -> FindingText:
    found = entry.finding
    facts = rate_facts(_rates(cell, entry))
    if found.driver:
        facts.append(Fact("Driver", found.driver))
    for label, text in (
        ("Since", entry.news),
        ("Waived", entry.waived),
        ("Not waived", entry.why_not),
        ("Run", f"{cell.id}/{cell.run}" if cell.run else ""),
    ):
        if text:
            facts.append(Fact(label, text))
    badge = BADGES["WAIVED" if entry.waived else found.verdict]
    return FindingText(badge, found.kind, found.subject, f"{cell.id}: {found.title}", tuple(facts))


def _counts(entry: CellFinding) -> bool:
    return not entry.waived and entry.finding.verdict != VerdictKind.INCONCLUSIVE


def _entries(run: NightlyRun) -> Iterator[tuple[CellResult, CellFinding]]:
    """Return all findings with their cells: first those that count, then waived, then undecided."""
    every = [(cell, entry) for cell in run.cells for entry in cell.findings]

    def place(pair: tuple[CellResult, CellFinding]) -> tuple[bool, bool]:
        return pair[1].finding.verdict == VerdictKind.INCONCLUSIVE, bool(pair[1].waived)

    return iter(sorted(every, key=place))


def _provenance(run: NightlyRun) -> Table:
    machines = sorted({cell.machine_class for cell in run.cells if cell.machine_class})
    engines = sorted({cell.engine for cell in run.cells if cell.engine})
    rows = [
        ("plan", f"{run.plan.name}, {run.plan.hash}"),
        ("machines", "; ".join(machines)),
        ("engine hash", "; ".join(engines)),
    ]
    return Table("Nightly run", ("", ""), tuple(rows))
