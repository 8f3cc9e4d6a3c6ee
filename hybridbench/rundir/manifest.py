"""The manifest of a stored run: refused where a reader could not rely on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from hybridbench.errors import ErrorCode, RunDirectoryError
from hybridbench.foreign import (
    DOCUMENT_BYTES_MAX,
    INT_MAX,
    INT_MIN,
    WALL_S_MAX,
    ForeignDataError,
    json_value,
    read_text,
)
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import RUN_SCHEMA, Manifest, manifest_from_json
from hybridbench.rundir.layout import MANIFEST


class _Named(msgspec.Struct):
    name: str


class _Required(msgspec.Struct):
    """The keys that every reader relies on; what else is missing has its default."""

    run_id: str
    started_wall_s: Annotated[float, msgspec.Meta(ge=0.0, le=WALL_S_MAX)]
    model: _Named
    profile: _Named
    seed: Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
    defects: list[JsonValue]
    versions: dict[str, JsonValue]


def read_manifest(path: Path) -> Manifest:
    """The manifest of the run at ``path``.

    Raises:
        RunDirectoryError: when it is missing, damaged, or of a later version.
    """
    file = path / MANIFEST
    try:
        text = read_text(file, DOCUMENT_BYTES_MAX)
    except FileNotFoundError as error:
        raise RunDirectoryError(
            f"{path} is not a run directory: it has no {MANIFEST}", code=ErrorCode.NOT_FOUND
        ) from error
    except ForeignDataError as error:
        raise RunDirectoryError(f"{file} {error}", code=ErrorCode.DAMAGED) from error
    except OSError as error:
        raise RunDirectoryError(
            f"cannot read {file}: {error.strerror}", code=ErrorCode.NOT_READABLE
        ) from error
    return manifest_from_text(text, file)


def manifest_from_text(text: str, path: Path) -> Manifest:
    """The manifest stored at ``path``.

    Raises:
        RunDirectoryError: for damaged JSON, a missing key, or the schema of another version.
    """
    try:
        stored = json_value(text)
    except ForeignDataError as error:
        raise RunDirectoryError(f"{path} {error}", code=ErrorCode.DAMAGED) from error
    if not isinstance(stored, dict):
        raise RunDirectoryError(f"{path} holds no JSON object", code=ErrorCode.DAMAGED)
    schema = stored.get("schema")
    if schema != RUN_SCHEMA:
        raise RunDirectoryError(
            f"{path} has schema {schema!r}, and this hybridbench reads {RUN_SCHEMA!r} only: "
            "read it with the version that wrote it",
            code=ErrorCode.OTHER_VERSION,
        )
    try:
        msgspec.convert(stored, _Required)
    except msgspec.ValidationError as error:
        raise RunDirectoryError(f"{path}: {error}", code=ErrorCode.DAMAGED) from error
    return manifest_from_json(stored)
