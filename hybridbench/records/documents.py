"""Read our own files, so that all readers refuse damaged files and unknown versions alike.

Errors of writing are translated here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybridbench.foundation.errors import ErrorCode, RunDirectoryError
from hybridbench.foundation.foreign import ForeignDataError, read_json
from hybridbench.records.json_value import JsonValue


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Translate errors while reading the file at ``path`` inside the block.

    Raises:
        FileNotFoundError: it does not exist.
        RunDirectoryError: it cannot be read, or its content is invalid.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except ForeignDataError as error:
        raise RunDirectoryError(f"{path} {error}", code=ErrorCode.DAMAGED) from error
    except OSError as error:
        raise RunDirectoryError(
            f"cannot read {path}: {error.strerror}", code=ErrorCode.NOT_READABLE
        ) from error


@contextmanager
def writing(what: str, advice: str = "") -> Iterator[None]:
    """Translate a refusal by the system to do ``what`` inside the block, such as ``write PATH``.

    Raises:
        RunDirectoryError: the system refused; ends with ``advice``, if any.
    """
    try:
        yield
    except OSError as error:
        # A file in place of a directory.
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        said = f"cannot {what}: {why}{'; ' if advice else ''}{advice}"
        raise RunDirectoryError(said, code=ErrorCode.NOT_WRITABLE) from error


def read_document(
    path: Path,
    schema: str,
    missing: str = "",
    remedy: str = "read it with the version that wrote it",
) -> dict[str, JsonValue]:
    """Return the JSON object in the file at ``path``, after checking its schema.

    Args:
        path: the file's path.
        schema: required schema, with its version.
        missing: error message if there is no such file.
        remedy: advice if the schema differs.

    Raises:
        RunDirectoryError: it is missing, damaged, or of another version.
    """
    try:
        with reading(path):
            stored = read_json(path)
    except FileNotFoundError as error:
        raise RunDirectoryError(
            missing or f"cannot read {path}: {error.strerror}", code=ErrorCode.NOT_FOUND
        ) from error
    if not isinstance(stored, dict):
        raise RunDirectoryError(f"{path} is not a JSON object", code=ErrorCode.DAMAGED)
    if stored.get("schema") != schema:
        raise RunDirectoryError(
            f"{path} has schema {stored.get('schema')!r}, and this hybridbench reads {schema!r} "
            f"only: {remedy}",
        )
    return stored
