"""Read and validate the manifest of a stored run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hybridbench.foundation.errors import ErrorCode, RunDirectoryError
from hybridbench.records.documents import read_document
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import RUN_SCHEMA, Int64, Manifest, Wall, manifest_from_json
from hybridbench.rundir.layout import MANIFEST, STORE


class _Named(msgspec.Struct):
    name: str


class _Required(msgspec.Struct):
    """The keys that every reader relies on; other missing keys get their defaults."""

    run_id: str
    started_wall_s: Wall
    model: _Named
    profile: _Named
    seed: Int64 | None  # None: the traffic was not ours
    defects: list[JsonValue]
    versions: dict[str, JsonValue]


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of the run at ``path``.

    Raises:
        RunDirectoryError: it is missing, damaged, or from a later version.
    """
    file = path / MANIFEST
    if path.is_file():
        raise RunDirectoryError(
            f"{path} is a file: name the directory that holds it", code=ErrorCode.NOT_FOUND
        )
    missing = "" if file.exists() else f"{path} {_missing(path)}"
    stored = read_document(file, RUN_SCHEMA, missing=missing)
    try:
        msgspec.convert(stored, _Required)
        return manifest_from_json(stored)
    except msgspec.ValidationError as error:
        raise RunDirectoryError(
            f"{file} is damaged, or from before version 0.1.0: {error}", code=ErrorCode.DAMAGED
        ) from error


def _missing(path: Path) -> str:
    """Return what follows ``path`` to say why there is no manifest, and what may be meant."""
    if path.is_dir():
        what = f"is not a run directory: it has no {MANIFEST}"
        if next(path.glob(f"*/{MANIFEST}"), None) is None:
            return what
        return f"{what}; name a run in it: `hybridbench list runs --store {path}` lists them"
    elsewhere = STORE / path
    hint = f"; did you mean {elsewhere}?" if elsewhere.is_dir() else ""
    return f"does not exist{hint}"
