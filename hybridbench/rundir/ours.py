"""Which directories are ours: the name of a file says nothing, others have a comparison.json, too.

Its content must say so.
"""

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
    """Any document; what else it holds is skipped unread."""

    schema: str = ""


def is_ours(path: Path) -> bool:
    """Whether the content of ``path`` says that it is a run, a comparison, or a nightly run or cell
    of ours.

    A run whose manifest is damaged is known by its samples, a nightly run in the making by a cell.
    """
    return (
        any((_schema(path / name) or "").startswith(one) for name, one in _SCHEMAS.items())
        or _has_samples(path / SAMPLES)
        or any(is_ours(cell.parent) for cell in path.glob(f"{CELLS}/*/{CELL}"))
    )


def is_foreign(file: Path) -> bool:
    """Whether ``file`` is a whole document, and none of ours: other programs write a file of that
    name.  A damaged one may be ours.
    """
    schema = _schema(file)
    return schema is not None and not schema.startswith("hybridbench.")


def _schema(file: Path) -> str | None:
    """What the document in ``file`` calls itself, empty if nothing; None where it is missing,
    damaged or larger than any of ours.
    """
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
