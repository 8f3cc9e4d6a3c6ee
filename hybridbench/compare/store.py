"""The directory of a comparison: its manifest, its raw blocks, and a run directory per side.

``comparison.json`` says what was compared and how it ended; ``blocks.jsonl`` has a line per block,
written when the block ends.  Neither contains a verdict: every reader judges the blocks again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from hybridbench.analysis.comparison.compare import compare
from hybridbench.analysis.comparison.ratios import CheckedRatio, check_ratios
from hybridbench.analysis.comparison.records import (
    Block,
    Comparison,
    ComparisonTerms,
    ComparisonVerdict,
    Version,
)
from hybridbench.analysis.comparison.stored import stored_blocks
from hybridbench.analysis.comparison.words import phrased_comparison
from hybridbench.analysis.judge import judge
from hybridbench.foundation.clock import Clock, SystemClock
from hybridbench.foundation.errors import (
    ConfigError,
    ErrorCode,
    RunDirectoryError,
    SameEngineError,
    UsageError,
)
from hybridbench.foundation.thresholds import parse_threshold
from hybridbench.records.comparison import (
    COMPARISON_SCHEMA,
    FINISHED,
    ComparedVersion,
    ComparisonManifest,
    comparison_manifest_from_json,
    comparison_manifest_to_json,
)
from hybridbench.records.documents import read_document
from hybridbench.records.json_value import json_text
from hybridbench.rundir.atomic import write_atomically
from hybridbench.rundir.layout import BLOCKS, COMPARISON, make_run_dir, new_run_id, remove_unused
from hybridbench.rundir.lines import LineFile, read_lines, short
from hybridbench.rundir.reader import read_run


@dataclass(frozen=True)
class StoredComparison:
    """A stored comparison, read but not judged."""

    comparison: Comparison
    terms: ComparisonTerms
    manifest: ComparisonManifest


def judged_comparison(
    stored: StoredComparison,
) -> tuple[ComparisonVerdict, tuple[CheckedRatio, ...]]:
    """Return the verdict with its texts, and the checked thresholds on ratios."""
    compared = phrased_comparison(stored.comparison, compare(stored.comparison, stored.terms))
    return check_ratios(compared, stored.manifest.thresholds)


class ComparisonWriter:
    """Owns ``comparison.json`` and ``blocks.jsonl`` while a comparison runs."""

    def __init__(self, directory: Path, manifest: ComparisonManifest) -> None:
        """Write ``manifest``, and open the file of blocks.

        Raises:
            RunDirectoryError: the directory cannot be written.
        """
        self.directory = directory
        self.store(manifest)
        self._file = LineFile(directory / BLOCKS, SystemClock(), sync_every_s=0.0)

    def store(self, manifest: ComparisonManifest) -> None:
        """Write ``manifest``, replacing the previous one."""
        self.manifest = manifest
        write_atomically(
            self.directory / COMPARISON, json_text(comparison_manifest_to_json(manifest))
        )

    def block(self, block: Block) -> None:
        """Append one block.

        Raises:
            RunDirectoryError: it cannot be written.
        """
        values = {n: short(value) for n, value in block.values.items() if math.isfinite(value)}
        self._file.append(
            {
                "version": block.version,
                "round": block.round,
                "position": block.position,
                "started_s": round(block.started_s, 4),
                "values": values,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


@contextmanager
def opened_comparison(
    store: Path, clock: Clock, terms: ComparisonTerms, manifest: ComparisonManifest
) -> Iterator[ComparisonWriter]:
    """Open a new comparison in ``store``; remove its directory if nothing ran.

    Raises:
        RunDirectoryError: the store cannot be written.
    """
    started_wall_s = clock.wall_s()
    run_id = new_run_id(started_wall_s, manifest.model, manifest.profile)
    directory = make_run_dir(store, f"{run_id}-compare")
    known = msgspec.structs.replace(
        manifest,
        comparison_id=directory.name,
        started_wall_s=started_wall_s,
        looks=terms.looks,
        margin=terms.margin,
        alpha=terms.alpha,
    )
    try:
        with ComparisonWriter(directory, known) as writer:
            yield writer
    except (ConfigError, SameEngineError, UsageError) as error:
        # If nothing ran, do not leave an empty directory behind.
        if remove_unused(directory):
            raise
        kept = f"{error} What has run is kept in {directory}."
        raise error.reworded(kept) from error


def read_comparison(path: Path) -> StoredComparison:
    """Read the comparison in ``path``, and judge every side's run separately.

    Raises:
        RunDirectoryError: it is missing, damaged, or was written by a later version.
    """
    manifest = read_comparison_manifest(path)
    if len(manifest.versions) < 2:
        raise _too_few_versions(path, manifest)
    versions = tuple(_version(path, entry) for entry in manifest.versions)
    if manifest.interleaved:
        # An incomplete last line is a block that was never stored.
        blocks = tuple(read_lines(path / BLOCKS, msgspec.json.Decoder(Block)).lines)
    else:
        blocks = _windows(versions)
    default = ComparisonTerms()
    try:
        terms = ComparisonTerms(
            margin=default.margin if manifest.margin is None else manifest.margin,
            looks=manifest.looks or default.looks,
        )
        for threshold in manifest.thresholds:
            parse_threshold(threshold)
    except ValueError as error:
        raise RunDirectoryError(
            f"{path / COMPARISON} is damaged: {error}", code=ErrorCode.DAMAGED
        ) from error
    comparison = Comparison(
        versions,
        blocks,
        manifest.interleaved,
        manifest.looks,
        frozenset(manifest.allowed_mismatches),
        manifest.renew_every or 0,
    )
    return StoredComparison(comparison, terms, manifest)


def read_comparison_manifest(path: Path) -> ComparisonManifest:
    """Read ``comparison.json`` in ``path``.

    Raises:
        RunDirectoryError: the file is missing, damaged, or was written by a later version.
    """
    stored = read_document(
        path / COMPARISON,
        COMPARISON_SCHEMA,
        missing=f"{path} is not a comparison: it has no {COMPARISON}",
    )
    try:
        return comparison_manifest_from_json(stored)
    except msgspec.ValidationError as error:
        raise RunDirectoryError(
            f"{path / COMPARISON} is damaged, or from before version 0.1.0: {error}",
            code=ErrorCode.DAMAGED,
        ) from error


def _too_few_versions(path: Path, manifest: ComparisonManifest) -> RunDirectoryError:
    if manifest.ended in FINISHED:
        said = f"{path / COMPARISON} names fewer than two versions"
        return RunDirectoryError(said, code=ErrorCode.DAMAGED)
    return RunDirectoryError(
        f"{path} ended before its second version had run: there is nothing to compare"
    )


def _version(path: Path, entry: ComparedVersion) -> Version:
    record = read_run(path / entry.run)
    return Version(entry.name, entry.kind, record.manifest, record, judge(record))


def _windows(versions: Sequence[Version]) -> tuple[Block, ...]:
    return tuple(
        block
        for index, version in enumerate(versions)
        for block in stored_blocks(version.record, index)
    )
