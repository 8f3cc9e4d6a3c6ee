"""A document in a GitHub workflow: the step summary and the annotations.

GitHub drops a summary above 1 MiB completely, and all but ten annotations of a kind per step.  The
most important things therefore come first, and truncation is stated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hybridbench.report.document import Document, Gate, GateState, tally
from hybridbench.report.markdown import markdown_lines, markdown_row, markdown_text

# GitHub's limit is 1 MiB for all output of a step; leave room for the step's own.
SUMMARY_MAX_BYTES: Final = 1_000_000
ANNOTATIONS_MAX: Final = 10

_LEVEL: Final = {
    GateState.FAILED: "error",
    GateState.ERROR: "error",
    GateState.SKIPPED: "warning",
    GateState.PASSED: "notice",
}
_ANSWERS: Final = {"verdict", "answer"}  # of a run or a night; of a comparison
_MESSAGE_MAX: Final = 4_000


def render_summary(document: Document, max_bytes: int = SUMMARY_MAX_BYTES) -> str:
    """Render in Markdown, at most ``max_bytes`` of UTF-8; the end is cut, never the head."""
    answer, *rest = markdown_lines(document)
    return _fitting(
        [*answer, *_gates(document), *(line for part in rest for line in part)], max_bytes
    )


def render_annotations(document: Document) -> str:
    """Return workflow commands: the verdict first, then what did not pass, at most ten per level.

    An undecided gate is not reported if the verdict does not depend on it.
    """
    first = _verdict_gate(document)
    others = [gate for gate in document.gates if gate is not first and _is_reported(gate)]
    lines = []
    for level in ("error", "warning", "notice"):
        gates = [g for g in (first, *others) if _LEVEL[g.state] == level]
        shown = gates if len(gates) <= ANNOTATIONS_MAX else gates[: ANNOTATIONS_MAX - 1]
        lines += [
            _command(level, f"{document.suite}: {gate.name}", str(gate.text)) for gate in shown
        ]
        if len(gates) > len(shown):
            left = f"{len(gates) - len(shown)} more are in the report."
            lines.append(_command(level, f"{document.suite}: and more", left))
    return "".join(f"{line}\n" for line in lines)


def _verdict_gate(document: Document) -> Gate:
    """Return the gate that repeats the verdict, or build one."""
    if document.gates and document.gates[0].name in _ANSWERS:
        return document.gates[0]
    state = GateState.PASSED if document.exit_code == 0 else GateState.FAILED
    return Gate("answer", "run", state, f"{document.badge.word}: {document.headline}")


def _is_reported(gate: Gate) -> bool:
    quiet = {GateState.PASSED, GateState.SKIPPED} if gate.minor else {GateState.PASSED}
    return gate.state not in quiet


def _gates(document: Document) -> Iterator[str]:
    """Report how many gates passed, and list those that did not."""
    if not document.gates:
        return
    yield f"**{tally(document.gates)}**"
    yield ""
    others = [gate for gate in document.gates if _is_reported(gate)]
    if others:
        yield markdown_row(("gate", "", "why"))
        yield markdown_row(("---", "---", "---"))
        for gate in others:
            cells = (f"{gate.group}: {gate.name}", gate.state.value, gate.text)
            yield markdown_row(markdown_text(cell) for cell in cells)
        yield ""


def _fitting(lines: list[str], max_bytes: int) -> str:
    text = "\n".join(lines).rstrip() + "\n"
    if len(text.encode()) <= max_bytes:
        return text
    note = "\n*Cut here: GitHub takes no more. The rest is in `report.md` of the results.*\n"
    room = max_bytes - len(note.encode())
    kept: list[str] = []
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    # A code fence left open by the cut would swallow the note.
    while sum(line.lstrip().startswith("```") for line in kept) % 2:
        kept.pop()
    return "\n".join(kept).rstrip() + "\n" + note


def _command(level: str, title: str, message: str) -> str:
    # Escaped as in GitHub's own toolkit; otherwise a log line could issue commands.
    flat = message if len(message) <= _MESSAGE_MAX else message[: _MESSAGE_MAX - 1] + "…"
    return f"::{level} title={_property(title)}::{_data(flat)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
