"""What injected defects did, beside the run: written by the parent, read by the self-test alone."""

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
    """Counts of each defect (by slug) by name.

    Since traffic began; in all, up to the last idle checkpoint; up to the ``steady`` event.
    """

    counts: Counts = msgspec.field(default_factory=dict)
    at_idle: Counts = msgspec.field(default_factory=dict)
    before_steady: Counts = msgspec.field(default_factory=dict)


def add_truth(run_dir: Path, reported: InjectedTruth) -> None:
    """Add the counts of one more worker to those of the workers before it.

    Raises:
        RunDirectoryError: when the directory cannot be written.
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
    """What ``add_truth`` stored; empty for a run without it."""
    path = run_dir / TRUTH
    try:
        with reading(path):
            data = read_bytes(path, DOCUMENT_BYTES_MAX)
        return msgspec.json.decode(data, type=StoredTruth)
    except FileNotFoundError:
        return StoredTruth()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunDirectoryError(f"{path} is damaged: {error}", code=ErrorCode.DAMAGED) from error
