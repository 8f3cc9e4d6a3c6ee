"""A night in words: the same document for console, HTML, Markdown, JUnit and step summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from hybridbench.nightly.merge import counted
from hybridbench.nightly.policy import CellState
from hybridbench.nightly.records import (
    CellOfNight,
    FindingOfNight,
    NightRecord,
    stored_rate,
)
from hybridbench.records.verdict import VerdictKind
from hybridbench.report.document import (
    Document,
    DocumentKind,
    Fact,
    FindingText,
    Gate,
    GateState,
    Table,
)
from hybridbench.report.wording import BADGES, full_rate_text, number, rate_text
from hybridbench.rundir.layout import NIGHT
from hybridbench.units import format_duration

_GATE: Final = {
    CellState.PASS: GateState.PASSED,
    CellState.FAIL: GateState.FAILED,
    CellState.NEUTRAL: GateState.SKIPPED,
    CellState.MISSING: GateState.ERROR,
}
# There is no answer of the engine's in these.
_NO_ANSWER: Final = ("CRASHED", "INVALID", "MISSING")
_PARTIAL: Final = (
    "No cell is red, but the budget left cells of the plan out, and this night says nothing of "
    "them; --allow-partial accepts that."
)
NOWHERE: Final[Mapping[str, str]] = {}
_MEANING: Final = {
    "PASS": "Every cell of this night came to a verdict, and none of them is red.",
    "FAIL": "A cell is red or came to no verdict; the exit code is that of the worst.",
    "INCONCLUSIVE": "No cell is red, and none of them was decided: this night proves nothing.",
}


def night_document(night: NightRecord, name: str, pages: Mapping[str, str] = NOWHERE) -> Document:
    """The report of ``night``.

    Args:
        night: what was merged.
        name: of its directory.
        pages: of a cell's id: the report of the run that decided, as a path from that directory.
    """
    return Document(
        kind=DocumentKind.NIGHT,
        run_id=name,
        subtitle=_subtitle(night),
        badge=BADGES[night.word],
        meaning=_meaning(night),
        exit_code=night.exit_code,
        headline=night.headline,
        answer=tuple(_answer(night)),
        gates=tuple(_gates(night)),
        tables=(_cells_table(night, pages), _findings_table(night), _changes_table(night)),
        findings=tuple(_finding(cell, entry) for cell, entry in _entries(night)),
        notes=(*night.notes, *(f"{c.id}: {note}" for c in night.cells for note in c.notes)),
        provenance=(_provenance(night),),
        data_file=NIGHT,
        suite=f"night {night.plan.name}",
    )


def _meaning(night: NightRecord) -> str:
    passed = any(cell.state == CellState.PASS for cell in night.cells)
    return _PARTIAL if night.word == "INCONCLUSIVE" and passed else _MEANING[night.word]


def _subtitle(night: NightRecord) -> str:
    parts = [f"plan {night.plan.name} {night.plan.hash}"]
    if night.started_wall_s:
        started = datetime.fromtimestamp(night.started_wall_s, UTC)
        parts.append(f"{started:%Y-%m-%d %H:%M} UTC")
        parts.append(format_duration(night.ended_wall_s - night.started_wall_s))
    return " · ".join(parts)


def _answer(night: NightRecord) -> Iterator[Fact]:
    if night.rehearsed:
        said = f"{', '.join(night.rehearsed)} put into every soak; no baseline for another night"
        yield Fact("Rehearsal", said)
    for cell in night.cells:
        if cell.state in (CellState.FAIL, CellState.MISSING):
            yield Fact(cell.id, f"{cell.word}: {cell.headline}")
    entries = list(_entries(night))
    fresh = [
        (f"{entry.finding.subject} ({entry.finding.kind})", "", cell.id)
        for cell, entry in entries
        if entry.news.startswith("new") and _counts(entry)
    ]
    if fresh:
        yield Fact("New since the last good night", _by_cells(fresh))
    waived = [(e.finding.subject, f" {e.waived}", cell.id) for cell, e in entries if e.waived]
    if waived:
        yield Fact("Waived", _by_cells(waived))
    if night.plan.false_red:
        yield Fact("Red by chance", night.plan.false_red)


def _by_cells(found: Iterable[tuple[str, str, str]]) -> str:
    """``TreeNode in one, two until 2027-01-31``, from what, its end and the cell of each."""
    cells: dict[tuple[str, str], list[str]] = {}
    for what, end, cell in found:
        cells.setdefault((what, end), []).append(cell)
    return "; ".join(f"{what} in {', '.join(where)}{end}" for (what, end), where in cells.items())


def _gates(night: NightRecord) -> Iterator[Gate]:
    states = {"PASS": GateState.PASSED, "FAIL": GateState.FAILED}
    state = states.get(night.word, GateState.SKIPPED)
    yield Gate("verdict", night.plan.name, state, f"{night.word}: {night.headline}")
    for cell in night.cells:
        state = GateState.ERROR if cell.word in _NO_ANSWER else _GATE[CellState(cell.state)]
        judged_s = sum(attempt.judged_s for attempt in cell.attempts)
        lines = [*(entry.finding.title for entry in cell.findings), *cell.changes, *cell.notes]
        yield Gate(
            name=cell.id,
            group="cell",
            state=state,
            text=f"{cell.id}: {cell.word}: {cell.headline}",
            detail="\n".join(lines),
            measured_s=judged_s or None,
        )
        seen = set()
        for entry in cell.findings:
            gate = f"{entry.finding.kind} of {entry.finding.subject}"
            # One finding may name two drivers; the gate is asked once, by its first answer.
            if entry.waived and gate not in seen:
                seen.add(gate)
                text = f"{entry.finding.title}; waived {entry.waived}"
                yield Gate(gate, cell.id, GateState.SKIPPED, text)
    for name in night.plan.left_out:
        yield Gate(name, "cell", GateState.SKIPPED, f"{name}: left out by the budget")


def _cells_table(night: NightRecord, pages: Mapping[str, str]) -> Table:
    left_out = tuple((name, "left out", "", "", "", "", "") for name in night.plan.left_out)
    rows = (*(_cell_row(cell) for cell in night.cells), *left_out)
    columns = ("cell", "", "verdict", "judged", "runs", "tokens/s", "of last good")
    note = "A cell that came to no verdict is MISSING and never a pass."
    links = (*(pages.get(cell.id, "") for cell in night.cells), *("" for _ in left_out))
    return _filled(Table("Cells", columns, rows, frozenset({3, 4, 5, 6}), note, links=links))


def _filled(table: Table) -> Table:
    """``table`` without its last column where that is empty in every row."""
    if any(row[-1] for row in table.rows):
        return table
    rows = tuple(row[:-1] for row in table.rows)
    numeric = table.numeric - {len(table.columns) - 1}
    return replace(table, columns=table.columns[:-1], rows=rows, numeric=numeric)


def _cell_row(cell: CellOfNight) -> tuple[str, ...]:
    throughput = cell.metrics.get("throughput_tokens_per_s")
    ratio = next((c.rsplit(" ", 1)[-1] for c in cell.changes if c.startswith("throughput")), "")
    judged_s = sum(attempt.judged_s for attempt in cell.attempts)
    return (
        cell.id,
        cell.state.upper() if cell.state != CellState.NEUTRAL else "neutral",
        cell.word,
        format_duration(judged_s) if judged_s else "",
        str(len(cell.attempts)),
        "" if throughput is None else number(round(throughput, 1)),
        ratio,
    )


def _findings_table(night: NightRecord) -> Table:
    rows = []
    for cell, entry in _entries(night):
        found = entry.finding
        if found.verdict == VerdictKind.INCONCLUSIVE and not entry.waived:
            continue
        # The interval is told with the finding; here it would tear the table on a terminal.
        rate = rate_text(stored_rate(found.rates[0])) if found.rates else ""
        # Until when; why and where is told with the finding.
        said = entry.waived.partition(":")[0] or entry.why_not
        badge = "WAIVED" if entry.waived else found.verdict
        rows.append((cell.id, badge, found.kind, found.subject, rate, entry.news, said))
    rows += [
        (cell.id, "", gone.kind, gone.subject, "", f"gone since {cell.baseline}", "")
        for cell in night.cells
        for gone in cell.gone
    ]
    columns = ("cell", "", "kind", "subject", "rate", "since the last good night", "waiver")
    return _filled(Table("Found, by cell", columns, tuple(rows)))


def _changes_table(night: NightRecord) -> Table:
    rows = []
    for cell in night.cells:
        if cell.baseline:
            said = "; ".join(cell.changes) or "nothing grew"
            rows.append((cell.id, cell.baseline, said))
    alone = len(night.cells) - len(rows)
    note = f"Without a good night to be compared with: {counted(alone)}. " if alone else ""
    note += (
        "Compared only with a green night of the same work on the same class of machine. Rates are "
        "told where their intervals do not meet. Two nights are not interleaved: the machine's own "
        "drift is in the ratio of their throughput."
    )
    return Table("Against the last good night", ("cell", "night", "what"), tuple(rows), note=note)


def _finding(cell: CellOfNight, entry: FindingOfNight) -> FindingText:
    found = entry.finding
    facts = [
        Fact("Growth" if r.per == "h" else "Per event", full_rate_text(stored_rate(r)))
        for r in found.rates
    ]
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


def _counts(entry: FindingOfNight) -> bool:
    return not entry.waived and entry.finding.verdict != VerdictKind.INCONCLUSIVE


def _entries(night: NightRecord) -> Iterator[tuple[CellOfNight, FindingOfNight]]:
    """All findings with their cells: those that count, those that are waived, what is open."""
    every = [(cell, entry) for cell in night.cells for entry in cell.findings]

    def place(pair: tuple[CellOfNight, FindingOfNight]) -> tuple[bool, bool]:
        return pair[1].finding.verdict == VerdictKind.INCONCLUSIVE, bool(pair[1].waived)

    return iter(sorted(every, key=place))


def _provenance(night: NightRecord) -> Table:
    machines = sorted({cell.machine_class for cell in night.cells if cell.machine_class})
    engines = sorted({cell.engine for cell in night.cells if cell.engine})
    rows = [
        ("plan", f"{night.plan.name}, {night.plan.hash}"),
        ("machines", "; ".join(machines)),
        ("engine files", "; ".join(engines)),
    ]
    return Table("The night", ("", ""), tuple(rows))
