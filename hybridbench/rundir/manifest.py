"""What ran: the manifest's shape, checked before it is written and after it is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
from hybridbench.records.json_value import JsonValue, as_mapping, plain_mapping
from hybridbench.rundir.layout import MANIFEST, RUN_SCHEMA

# The keys that every reader may rely on; schemas/manifest.schema.json describes the others.
_REQUIRED: Mapping[str, type | tuple[type, ...]] = {
    "schema": str,
    "run_id": str,
    "started_wall_s": (int, float),
    "model": Mapping,
    "profile": Mapping,
    "seed": int,
    "defects": list,
    "versions": Mapping,
}


_SHOWN_CHARS: Final = 60


def checked_manifest(manifest: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """``manifest`` as plain JSON values, with its schema named.

    Numbers that are not finite become null: a machine may not know one of its limits.

    Raises:
        RunDirectoryError: when a key that every reader relies on is missing or of another type.
    """
    plain = plain_mapping({"schema": RUN_SCHEMA, **manifest})
    for key, kind in _REQUIRED.items():
        if key not in plain:
            raise RunDirectoryError(
                f"{MANIFEST} lacks {key!r}, which every manifest must have", code=ErrorCode.DAMAGED
            )
        if not isinstance(plain[key], kind):
            shown = _excerpt(plain[key])
            raise RunDirectoryError(
                f"{MANIFEST}: {key!r} has the wrong type: {shown}", code=ErrorCode.DAMAGED
            )
    _check_range(plain, "started_wall_s", 0.0, WALL_S_MAX)
    _check_range(plain, "seed", INT_MIN, INT_MAX)
    for key in ("model", "profile"):
        name = as_mapping(plain[key]).get("name")
        if not isinstance(name, str):
            raise RunDirectoryError(
                f"{MANIFEST}: {key!r} must be a mapping with a 'name'", code=ErrorCode.DAMAGED
            )
    return plain


def read_manifest(path: Path) -> dict[str, JsonValue]:
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


def manifest_from_text(text: str, path: Path) -> dict[str, JsonValue]:
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
    return checked_manifest(stored)


def _excerpt(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _check_range(plain: Mapping[str, JsonValue], key: str, least: float, most: float) -> None:
    value = plain[key]
    assert isinstance(value, int | float)
    # A bool is an int to isinstance, and says neither when nor how.
    if isinstance(value, bool) or not least <= value <= most:
        raise RunDirectoryError(
            f"{MANIFEST}: {key!r} is out of range: {value!r}", code=ErrorCode.DAMAGED
        )
