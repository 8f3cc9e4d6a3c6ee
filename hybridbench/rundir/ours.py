"""Recognise our directories by content, as other programs also write a comparison.json."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from hybridbench.foundation.foreign import (
    DOCUMENT_BYTES_MAX,
    ForeignDataError,
    open_regular,
    read_bytes,
)
from hybridbench.foundation.metrics import spec_of
from hybridbench.rundir.layout import CELL, CELLS, COMPARISON, MANIFEST, NIGHTLY, SAMPLES
from hybridbench.rundir.lines import decoded_sample

_SCHEMAS: Final = {
    MANIFEST: "hybridbench.run/",
    COMPARISON: "hybridbench.comparison-plan/",
    NIGHTLY: "hybridbench.night/",
    CELL: "hybridbench.cell/",
}
_FIRST_BYTES: Final = 1 << 20


class _Document(msgspec.Struct):
    """The schema name of any document; other keys are skipped."""

    schema: str = ""


def is_ours(path: Path) -> bool:
    """Whether ``path`` contains a run, a comparison, a nightly run or a cell of ours.

    A run with a damaged manifest is recognised by its samples, an unfinished nightly run by a cell.
    """
    return (
        any((_schema(path / name) or "").startswith(one) for name, one in _SCHEMAS.items())
        or _has_samples(path / SAMPLES)
        or any(is_ours(cell.parent) for cell in path.glob(f"{CELLS}/*/{CELL}"))
    )


def is_foreign(file: Path) -> bool:
    """Whether ``file`` is an intact document of another program; a damaged one may be ours."""
    schema = _schema(file)
    return schema is not None and not schema.startswith("hybridbench.")


def _schema(file: Path) -> str | None:
    """The schema name in ``file``, or empty; None if missing, damaged, or larger than ours."""
    try:
        return msgspec.json.decode(read_bytes(file, DOCUMENT_BYTES_MAX), type=_Document).schema
    except msgspec.ValidationError:
        return ""
    except (OSError, ForeignDataError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _has_samples(file: Path) -> bool:
    try:
        with open_regular(file) as opened:
            data = opened.read(_FIRST_BYTES)
    except (OSError, ForeignDataError):
        return False
    sample = decoded_sample(data.partition(b"\n")[0])
    return sample is not None and bool(sample.m) and all(spec_of(name) for name in sample.m)
