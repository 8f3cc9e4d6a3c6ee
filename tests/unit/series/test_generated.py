"""1,000 recordings with a known truth: no verdict is wrong, and refusals have their reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hybridbench.foundation.errors import HybridbenchError
from hybridbench.records.finding import VerdictKind
from hybridbench.series.judge import FileVerdict, JudgeOptions, judge_file

from .generated import MIB, Generated, generate

FAST, ALL = 40, 1000
# Its memory contains the page cache, so growth is reported but proves nothing.
PROVES_NOTHING = ("systemctl",)


def wrong(made: Generated, verdict: FileVerdict) -> str:
    """Return what is wrong with a verdict; empty if nothing is.  Undecided is not wrong."""
    leaks = [row for row in verdict.rows if row.verdict is VerdictKind.LEAK]
    if not made.leaks:
        return f"{leaks[0].name} does not grow" if leaks else ""
    if verdict.kind is VerdictKind.CLEAN:
        return f"{made.leaks} is missed"
    rates = [row.result.rate_per_hour for row in leaks]
    (truth,) = made.leaks.values()
    off = [r for r in rates if r is not None and abs(r.value / MIB / truth - 1) > 0.08]
    return f"{off[0].value / MIB} MiB/h where {truth} is true" if off else ""


@pytest.mark.parametrize(
    "seed",
    [pytest.param(s, marks=() if s < FAST else pytest.mark.slow) for s in range(ALL)],
)
def test_a_recording_of_known_growth_is_not_judged_wrongly(tmp_path: Path, seed: int) -> None:
    made = generate(seed)
    path = tmp_path / "series"
    path.write_text(made.text, encoding="utf-8")
    options = JudgeOptions(interval_s=made.interval_s, steady_at="10m")

    if made.refused:
        with pytest.raises(HybridbenchError, match=made.refused):
            judge_file(str(path), options)
        return
    verdict = judge_file(str(path), options)

    assert not wrong(made, verdict), made.tool
    decided = VerdictKind.LEAK if made.leaks else VerdictKind.CLEAN
    assert verdict.kind is decided or made.tool in PROVES_NOTHING, made.tool
    assert not any(re.search("restart", note) for row in verdict.rows for note in row.notes)
