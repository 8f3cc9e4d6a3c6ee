"""Gates in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hybridbench.report.document import Gate, GateState

_WORDS: Final = {
    GateState.FAILED: "failed",
    GateState.ERROR: "without an answer",
    GateState.SKIPPED: "not decided",
    GateState.PASSED: "passed",
}


def tally(gates: Sequence[Gate]) -> str:
    """``31 gates: 1 failed, 2 not decided, 28 passed``."""
    states = [gate.state for gate in gates]
    counts = [f"{states.count(state)} {word}" for state, word in _WORDS.items() if state in states]
    return f"{len(gates)} {'gate' if len(gates) == 1 else 'gates'}: {', '.join(counts)}"
