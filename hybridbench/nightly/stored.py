"""cell.json and night.json on disk: read back or refused, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from hybridbench.errors import ErrorCode, RunDirectoryError
from hybridbench.records.codec import from_json, to_json
from hybridbench.records.documents import read_document
from hybridbench.records.json_value import json_text
from hybridbench.records.nightly import CELL_SCHEMA, NIGHTLY_SCHEMA, CellRecord, NightlyRun
from hybridbench.rundir.atomic import write_atomically

_Record = TypeVar("_Record", CellRecord, NightlyRun)


def read_cell(path: Path) -> CellRecord:
    """The cell stored in the file at ``path``.

    Raises:
        RunDirectoryError: it is damaged, or another version wrote it.
    """
    return _read(path, CellRecord, CELL_SCHEMA)


def read_nightly_run(path: Path) -> NightlyRun:
    """The nightly run stored in the file at ``path``.

    Raises:
        RunDirectoryError: it is damaged, or another version wrote it.
    """
    return _read(path, NightlyRun, NIGHTLY_SCHEMA)


def write_record(path: Path, record: CellRecord | NightlyRun) -> None:
    """Replace the file at ``path``.

    Raises:
        RunDirectoryError: it cannot be written.
    """
    write_atomically(path, json_text(to_json(record)))


def another_engine(one: str, other: str) -> bool:
    """Whether two hashes are of different engines; an empty one may be any."""
    return bool(one and other) and one != other


def _read(path: Path, kind: type[_Record], schema: str) -> _Record:
    stored = read_document(path, schema)
    cells = stored.get("cells")
    for cell in cells if isinstance(cells, list) else ():
        # Older versions wrote the cell of a result that never came back as an empty object.
        if isinstance(cell, dict) and cell.get("cell") == {}:
            cell["cell"] = None
    try:
        return from_json(stored, kind)
    except msgspec.ValidationError as error:
        raise RunDirectoryError(f"{path} is damaged: {error}", code=ErrorCode.DAMAGED) from error
