"""The answer beside a run with injected defects: written once, read by the self-test alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hybridbench.errors import ErrorCode, RunDirectoryError
from hybridbench.foreign import DOCUMENT_BYTES_MAX, ForeignDataError, read_bytes
from hybridbench.rundir.atomic import write_atomically
from hybridbench.rundir.layout import TRUTH


def write_truth(run_dir: Path, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Store what each defect (by slug) counted.

    Raises:
        RunDirectoryError: when the directory cannot be written.
    """
    write_atomically(run_dir / TRUTH, json.dumps(counts, indent=2, sort_keys=True) + "\n")


def add_truth(run_dir: Path, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Add the counts of one more worker to those of the workers before it.

    Raises:
        RunDirectoryError: when the directory cannot be written.
    """
    summed = read_truth(run_dir)
    for slug, named in counts.items():
        of_slug = summed.setdefault(slug, {})
        for name, count in named.items():
            of_slug[name] = of_slug.get(name, 0) + count
    write_truth(run_dir, summed)


def read_truth(run_dir: Path) -> dict[str, dict[str, int]]:
    """What ``write_truth`` stored; empty for a run without it."""
    try:
        data = read_bytes(run_dir / TRUTH, DOCUMENT_BYTES_MAX)
        return msgspec.json.decode(data, type=dict[str, dict[str, int]])
    except FileNotFoundError:
        return {}
    except (OSError, ForeignDataError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunDirectoryError(
            f"cannot read {run_dir / TRUTH}: {error}", code=ErrorCode.NOT_READABLE
        ) from error
