"""What a directory of results can be, and how each kind becomes a document.

A kind is recognised by the file that only it has.  Comparisons and nights stand before runs: both
may hold runs, and neither has a manifest of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybridbench.rundir.layout import COMPARISON

if TYPE_CHECKING:
    from hybridbench.report.document import Document


@dataclass(frozen=True)
class Told:
    """A document, and how to write the files that are derived from what it rests on."""

    document: Document
    write: Callable[[], None]


@dataclass(frozen=True)
class Source:
    """One kind of directory.

    ``tell`` reads and judges what is in it and writes nothing; it raises RunDirectoryError for a
    directory that is damaged.
    """

    marker: str
    tell: Callable[[Path], Told]


def tell_directory(directory: Path) -> Told:
    """Judge what is stored in ``directory`` again, whatever kind it is.

    Raises:
        RunDirectoryError: nothing of ours is in it, or it is damaged.
    """
    for source in SOURCES:
        if (directory / source.marker).is_file():
            return source.tell(directory)
    # The reader of runs knows best what is missing.
    return _run(directory)


def _run(run_dir: Path) -> Told:
    # Imported here: `--help` and usage errors should not wait for numpy.
    from hybridbench.analysis.judge import judge
    from hybridbench.report.build import build_document
    from hybridbench.report.write import write_run
    from hybridbench.rundir.reader import read_run

    record = read_run(run_dir)
    verdict = judge(record)
    document = build_document(record, verdict)
    return Told(document, lambda: write_run(run_dir, record, verdict, document))


def _night(directory: Path) -> Told:
    from hybridbench.nightly.run import stored_document, write_pages
    from hybridbench.nightly.stored import read_nightly_run
    from hybridbench.rundir.layout import NIGHT

    document = stored_document(directory, read_nightly_run(directory / NIGHT))
    return Told(document, lambda: write_pages(directory, document))


def _comparison(directory: Path) -> Told:
    from hybridbench.analysis.comparison.answer import check_ratios
    from hybridbench.analysis.comparison.compare import compare
    from hybridbench.analysis.reading import text, texts
    from hybridbench.compare.store import read_comparison
    from hybridbench.report.comparison import ComparisonSource, comparison_document
    from hybridbench.report.comparison_json import write_comparison
    from hybridbench.report.comparison_thresholds import with_ratios

    stored = read_comparison(directory)
    verdict, held = check_ratios(
        compare(stored.comparison, stored.terms), texts(stored.facts, "thresholds")
    )
    source = ComparisonSource(
        run_id=text(stored.facts, "comparison_id", directory.name),
        command=tuple(texts(stored.facts, "command")),
        ended_by=stored.ended_by,
    )
    document = with_ratios(comparison_document(stored.comparison, verdict, source), held)
    return Told(document, lambda: write_comparison(directory, stored.comparison, verdict, document))


SOURCES: tuple[Source, ...] = (Source(COMPARISON, _comparison), Source("night.json", _night))
