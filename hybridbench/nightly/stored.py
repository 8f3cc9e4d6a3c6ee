"""cell.json and night.json on disk: read back or refused, written whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from hybridbench.errors import ErrorCode, RunDirectoryError
from hybridbench.foreign import DOCUMENT_BYTES_MAX, ForeignDataError, read_bytes
from hybridbench.records.codec import from_json, to_json
from hybridbench.records.json_value import json_text
from hybridbench.records.nightly import CELL_SCHEMA, NIGHTLY_SCHEMA, CellRecord, NightlyRun
from hybridbench.rundir.atomic import write_atomically

_Record = TypeVar("_Record", CellRecord, NightlyRun)
# Older versions wrote the cell of a result that never came back as an empty object.
_LOST_CELL: Final = re.compile(rb'"cell":\s*\{\}')


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
    try:
        data = read_bytes(path, DOCUMENT_BYTES_MAX)
    except ForeignDataError as error:
        raise RunDirectoryError(f"{path} {error}", code=ErrorCode.NOT_READABLE) from error
    except OSError as error:
        raise RunDirectoryError(
            f"cannot read {path}: {error.strerror}", code=ErrorCode.NOT_READABLE
        ) from error
    try:
        stored = msgspec.json.decode(_LOST_CELL.sub(b'"cell": null', data), type=dict)
        if stored.get("schema") != schema:
            raise RunDirectoryError(
                f"{path} has schema {stored.get('schema')!r}, and this hybridbench reads "
                f"{schema!r} only: read it with the version that wrote it",
                code=ErrorCode.OTHER_VERSION,
            )
        return from_json(stored, kind)
    except (msgspec.DecodeError, RecursionError) as error:
        said = str(error).partition("\n")[0]
        raise RunDirectoryError(f"{path} is damaged: {said}", code=ErrorCode.DAMAGED) from error
