"""Actual effects of injected defects: written by the parent, read only by the self-test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from hybridbench.foundation.errors import ErrorCode, RunDirectoryError
from hybridbench.foundation.foreign import DOCUMENT_BYTES_MAX, read_bytes
from hybridbench.records.documents import reading
from hybridbench.records.messages import InjectedTruth
from hybridbench.rundir.atomic import write_atomically
from hybridbench.rundir.layout import TRUTH

Counts = dict[str, dict[str, int]]


class StoredTruth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts by defect slug, then by name.

    ``counts`` since traffic began; ``at_idle`` in total up to the last idle checkpoint;
    ``before_steady`` up to the ``steady`` event.
    """

    counts: Counts = msgspec.field(default_factory=dict)
    at_idle: Counts = msgspec.field(default_factory=dict)
    before_steady: Counts = msgspec.field(default_factory=dict)


def add_truth(run_dir: Path, reported: InjectedTruth) -> None:
    """Add a worker's counts to those of the run's earlier workers.

    Raises:
        RunDirectoryError: the directory cannot be written.
    """
    stored = read_truth(run_dir)
    summed = StoredTruth(
        _sum(stored.counts, reported.counts),
        _sum(stored.at_idle, reported.at_idle or reported.counts),
        _sum(stored.before_steady, reported.before_steady),
    )
    text = msgspec.json.format(msgspec.json.encode(summed, order="sorted"), indent=2)
    write_atomically(run_dir / TRUTH, text.decode() + "\n")


def _sum(stored: Counts, reported: Mapping[str, Mapping[str, int]]) -> Counts:
    summed = {slug: dict(named) for slug, named in stored.items()}
    for slug, named in reported.items():
        of_slug = summed.setdefault(slug, {})
        for name, count in named.items():
            of_slug[name] = of_slug.get(name, 0) + count
    return summed


def read_truth(run_dir: Path) -> StoredTruth:
    """Read the counts that ``add_truth`` stored; empty if there are none."""
    path = run_dir / TRUTH
    try:
        with reading(path):
            data = read_bytes(path, DOCUMENT_BYTES_MAX)
        return msgspec.json.decode(data, type=StoredTruth)
    except FileNotFoundError:
        return StoredTruth()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunDirectoryError(f"{path} is damaged: {error}", code=ErrorCode.DAMAGED) from error
