"""What proves a directory to be one of ours, and what in it is not; asked before a deletion.

The name of a file proves nothing: others have a comparison.json, too.  Its content must say so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from hybridbench.foreign import DOCUMENT_BYTES_MAX, ForeignDataError, open_regular, read_bytes
from hybridbench.metrics import spec_of
from hybridbench.rundir.layout import (
    CELL,
    CELLS,
    COMPARISON,
    LOCK,
    MANIFEST,
    NIGHTLY,
    RECORDED,
    SAMPLES,
    WRITTEN_PAGES,
)
from hybridbench.rundir.lines import decoded_sample

_ATTEMPT: Final = "attempt-"
_CONSOLE: Final = "console.txt"
# A cell and its attempts hold results, and besides these only a lock and what commands have said.
_OF_CELLS: Final = frozenset({LOCK, _CONSOLE})
_KNOWN: Final = RECORDED | WRITTEN_PAGES
# What a kill in the middle of write_atomically leaves.
_PART: Final = re.compile(r"\.(?P<name>.+)\.\d+-[0-9a-f]{6}\.part")
_FIRST_BYTES: Final = 1 << 20
_UNREADABLE: Final = (OSError, ForeignDataError)
_NOT_JSON: Final = (*_UNREADABLE, msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def is_ours(path: Path) -> bool:
    """Whether the content of ``path`` says that it is a run, a comparison or a nightly run of ours.

    A run whose manifest is damaged is known by its samples.
    """
    return (
        _says(path / MANIFEST, "hybridbench.run/", "run_id")
        or _has_samples(path / SAMPLES)
        or _says(path / COMPARISON, "hybridbench.comparison-plan/", "comparison_id")
        or _says(path / NIGHTLY, "hybridbench.night/", "plan")
        or any(is_cell(cell.parent) for cell in path.glob(f"{CELLS}/*/{CELL}"))
    )


def is_cell(path: Path) -> bool:
    """Whether ``path`` is the directory of one cell of a nightly run."""
    return _says(path / CELL, "hybridbench.cell/", "plan")


def is_foreign(file: Path) -> bool:
    """Whether ``file`` is a whole document, and none of ours: other programs write a file of that
    name.  A damaged one, of which nobody can tell, is taken for ours.
    """
    try:
        stored = _document(file)
    except msgspec.ValidationError:
        return True
    except _NOT_JSON:
        return False
    return not _schema(stored).startswith("hybridbench.")


def foreign_files(path: Path) -> Iterator[Path]:
    """What lies below ``path``, which is ours, and was not written by us; relative to it.

    A file is ours by its name in a directory that proves to be ours; a link never is.
    """
    for folder, folders, files in os.walk(path):
        place = Path(folder)
        known = _known_in(place, is_top=place == path)
        for name in sorted(files):
            ours = name in known or _is_part(name, known)
            if not ours or (place / name).is_symlink():
                yield (place / name).relative_to(path)
        links = (name for name in sorted(folders) if (place / name).is_symlink())
        yield from ((place / name).relative_to(path) for name in links)


def _known_in(place: Path, *, is_top: bool) -> frozenset[str]:
    if is_top or is_ours(place) or is_cell(place):
        return _KNOWN
    in_nightly = place.name == CELLS or (place.name.startswith(_ATTEMPT) and is_cell(place.parent))
    return _OF_CELLS if in_nightly else frozenset()


def _is_part(name: str, known: frozenset[str]) -> bool:
    match = _PART.fullmatch(name)
    return match is not None and match["name"] in known


def _says(file: Path, schema: str, key: str) -> bool:
    """Whether ``file`` is a document of that schema and has ``key``, as all of these have."""
    try:
        stored = _document(file)
    except _NOT_JSON:
        return False
    return key in stored and _schema(stored).startswith(schema)


def _document(file: Path) -> dict[str, msgspec.Raw]:
    """The object in ``file``, its values unread.

    Raises:
        msgspec.ValidationError: it holds another kind of value.
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: it is damaged.
        OSError, ForeignDataError: it is missing, no regular file, or larger than any of ours.
    """
    data = read_bytes(file, DOCUMENT_BYTES_MAX)
    return msgspec.json.decode(data, type=dict[str, msgspec.Raw])


def _schema(stored: dict[str, msgspec.Raw]) -> str:
    schema = msgspec.json.decode(stored.get("schema", b"null"))
    return schema if isinstance(schema, str) else ""


def _has_samples(file: Path) -> bool:
    try:
        with open_regular(file) as opened:
            data = opened.read(_FIRST_BYTES)
    except _UNREADABLE:
        return False
    sample = decoded_sample(data.partition(b"\n")[0])
    return sample is not None and bool(sample.m) and all(spec_of(name) for name in sample.m)
