"""What a comparison left behind, as a cell stores it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from hybridbench.analysis.findings import VerdictKind
from hybridbench.errors import ExitCode
from hybridbench.nightly.cells import Cell
from hybridbench.nightly.records import AttemptRecord
from hybridbench.nightly.soak_attempt import HYBRIDBENCH
from hybridbench.units import format_duration

COMPARISON: Final = "comparison.json"
_ANSWERS: Final = {
    int(ExitCode.CLEAN): (VerdictKind.CLEAN, "nothing is worse"),
    int(ExitCode.REGRESSION): (VerdictKind.DEGRADED, "a regression"),
    int(ExitCode.INCONCLUSIVE): (VerdictKind.INCONCLUSIVE, "not decided"),
    int(ExitCode.CRASHED): (VerdictKind.CRASHED, "a worker could not be started or fell"),
}


def compare_command(cell: Cell, seed: int, duration_s: float, store: Path) -> list[str]:
    """The comparison of ``cell``, as anybody could type it."""
    words = [*HYBRIDBENCH, "compare", *cell.versions, "--ui", "plain", "--store", str(store)]
    words += ["--profile", cell.profile_source, "--model", cell.model, "--seed", str(seed)]
    words += ["--max-time", f"{duration_s:g}s"]
    if cell.block_s is not None:
        words += ["--block", f"{cell.block_s:g}s"]
    if cell.margin is not None:
        words += ["--margin", f"{cell.margin:g}"]
    if cell.gc is not None:
        words += ["--gc", cell.gc]
    for key, value in cell.settings:
        words += ["--set", f"{key}={value}"]
    for threshold in cell.thresholds:
        words += ["--threshold", threshold]
    return words


def with_comparison(
    attempt: AttemptRecord, exit_code: int, store: Path, cell_dir: Path
) -> AttemptRecord | None:
    """``attempt`` completed from its comparison; None if that came to no answer."""
    found = sorted(path.parent for path in store.glob(f"*/{COMPARISON}"))
    answer = _ANSWERS.get(exit_code)
    if not found or answer is None:
        return None
    kind, words = answer
    return msgspec.structs.replace(
        attempt,
        run=found[-1].relative_to(cell_dir).as_posix(),
        exit_code=exit_code,
        verdict=kind.value,
        headline=f"{words} in {format_duration(attempt.duration_s)}",
    )
