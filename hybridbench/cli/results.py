"""Recognise the kind of a results directory, and build its document."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from hybridbench.cli.options import ReportFormat
from hybridbench.rundir.layout import COMPARISON, NIGHTLY

if TYPE_CHECKING:
    from hybridbench.records.verdict import Failure
    from hybridbench.report.document import Document


# Formats whose text is not rendered from the document.
OtherFormats: TypeAlias = Mapping[ReportFormat, Callable[[], str]]


@dataclass(frozen=True)
class Result:
    """A document, and a function that writes the derived files of its result."""

    document: Document
    # Returns failed parts; empty for a run, whose findings already include them.
    write: Callable[[], Sequence[Failure]]
    others: OtherFormats = field(default_factory=dict)


def read_result(directory: Path, shown: Collection[str] = ()) -> Result:
    """Judge the result in ``directory``, of any kind, again; write nothing.

    ``shown`` are the formats to print or write.

    Raises:
        RunDirectoryError: it holds no result, or a damaged one.
    """
    for marker, read in _READERS.items():
        if (directory / marker).is_file():
            return read(directory)
    # The reader of runs gives the best message about missing files.
    return run_result(directory, shown=shown)


def run_result(
    run_dir: Path, thresholds: Sequence[str] = (), shown: Collection[str] = ()
) -> Result:
    """Judge the run in ``run_dir`` under its own thresholds and ``thresholds``.

    Raises:
        RunDirectoryError: there is no run.
    """
    # Imported here: `--help` and usage errors should not wait for numpy.
    from hybridbench.report.judged import judged_run
    from hybridbench.report.samples_csv import render_samples
    from hybridbench.report.write import write_run
    from hybridbench.rundir.reader import read_run

    record = read_run(run_dir)
    if thresholds:
        every = dict.fromkeys((*record.manifest.thresholds, *thresholds))
        manifest = msgspec.structs.replace(record.manifest, thresholds=tuple(every))
        record = replace(record, manifest=manifest)
    run = judged_run(record, shown)

    def write() -> Sequence[Failure]:
        write_run(run_dir, record, run.verdict, run.pages)
        return ()

    return Result(run.document, write, {ReportFormat.CSV: lambda: render_samples(record)})


def _nightly_run(directory: Path) -> Result:
    from hybridbench.over_time.run import stored_document, write_nightly_pages
    from hybridbench.over_time.stored import read_nightly_run

    document = stored_document(directory, read_nightly_run(directory / NIGHTLY))
    return Result(document, lambda: write_nightly_pages(directory, document))


def _comparison(directory: Path) -> Result:
    from hybridbench.compare.store import judged_comparison, read_comparison
    from hybridbench.report.comparison import comparison_document
    from hybridbench.report.comparison_json import write_comparison

    stored = read_comparison(directory)
    verdict, ratios = judged_comparison(stored)
    manifest = stored.manifest
    if not manifest.comparison_id:
        manifest = msgspec.structs.replace(manifest, comparison_id=directory.name)
    document = comparison_document(stored.comparison, verdict, manifest, ratios)
    return Result(
        document, lambda: write_comparison(directory, stored.comparison, verdict, document)
    )


# Keyed by a file that only this kind has.  Both may contain runs, but have no manifest themselves.
_READERS: Mapping[str, Callable[[Path], Result]] = {COMPARISON: _comparison, NIGHTLY: _nightly_run}
