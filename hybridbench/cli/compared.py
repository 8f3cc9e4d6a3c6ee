"""From a stored comparison to its answer on the console."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridbench.analysis.comparison_verdict import MetricComparison


def tell_comparison(directory: Path) -> int:
    """Judge the comparison in ``directory`` and print the answer.

    Returns:
        The exit code of the answer; 130 or 143 for one that was interrupted is the caller's.

    Raises:
        RunDirectoryError: there is none, or one of its runs cannot be read.
    """
    from rich.console import Console

    from hybridbench.analysis.comparison import compare
    from hybridbench.compare.store import read_comparison

    stored = read_comparison(directory)
    verdict = compare(stored.comparison, stored.terms)
    console = Console(highlight=False)
    console.print(verdict.headline, markup=False, style="bold")
    for version, entry in zip(stored.comparison.versions, "abcdefgh", strict=False):
        digest = str(version.manifest.get("engine_hash", ""))[:12]
        console.print(f"{entry}  {version.name}  engine {digest}", markup=False)
    for side in verdict.sides:
        console.print(f"\n{side.name} against {stored.comparison.versions[0].name}", markup=False)
        for metric in side.metrics:
            console.print(f"  {_line(metric)}", markup=False)
        for leak in side.leaks:
            console.print(f"  {leak.change.value:12} {leak.title}", markup=False)
    for note in verdict.notes:
        console.print(f"note: {note}", markup=False)
    console.print(str(directory), markup=False)
    return int(verdict.exit_code)


def _line(metric: MetricComparison) -> str:
    interval = f"{metric.ratio:.3f} [{metric.lower:.3f}, {metric.upper:.3f}]"
    return f"{metric.word:13} {metric.label:26} {interval}"
