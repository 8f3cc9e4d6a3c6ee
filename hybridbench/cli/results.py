"""What a directory of results can be, and how each kind becomes a document."""

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


# The text in a format that is not made of the document.
OtherFormats: TypeAlias = Mapping[ReportFormat, Callable[[], str]]


@dataclass(frozen=True)
class Result:
    """A document, and how to write the files that are derived from what it rests on."""

    document: Document
    # Returns what could not be made; a run's verdict has it already among its findings.
    write: Callable[[], Sequence[Failure]]
    others: OtherFormats = field(default_factory=dict)


def read_result(directory: Path, shown: Collection[str] = ()) -> Result:
    """Judge what is stored in ``directory`` again, whatever kind it is; nothing is written.

    ``shown`` names the formats in which it is to be printed or written.

    Raises:
        RunDirectoryError: nothing of ours is in it, or it is damaged.
    """
    for marker, read in _READERS.items():
        if (directory / marker).is_file():
            return read(directory)
    # The reader of runs knows best what is missing.
    return run_result(directory, shown=shown)


def run_result(
    run_dir: Path, thresholds: Sequence[str] = (), shown: Collection[str] = ()
) -> Result:
    """The run in ``run_dir`` judged under its own thresholds and these.

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


# By the file that only its kind has.  Both may hold runs, and neither has a manifest of its own.
_READERS: Mapping[str, Callable[[Path], Result]] = {COMPARISON: _comparison, NIGHTLY: _nightly_run}
