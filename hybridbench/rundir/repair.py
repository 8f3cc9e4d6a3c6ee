"""The end of a file of lines whose writer was killed: the torn piece goes, whole lines stay."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from hybridbench.errors import ErrorCode, RunDirectoryError

_BLOCK_BYTES: Final = 1 << 16


def repair_tail(path: Path) -> int:
    """Make ``path`` end with a whole line; a missing file is left missing.

    A last line that only lacks its newline gets it.  A torn one is cut off.

    Returns:
        Bytes that were cut off.

    Raises:
        RunDirectoryError: when the file cannot be changed.
    """
    try:
        with path.open("r+b") as file:
            return _repair(file)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise RunDirectoryError(
            f"cannot repair {path}: {error.strerror}", code=ErrorCode.NOT_WRITABLE
        ) from error


def _repair(file: BinaryIO) -> int:
    end = file.seek(0, os.SEEK_END)
    start = _after_last_newline(file, end)
    if start == end:
        return 0
    file.seek(start)
    tail = file.read()
    if _is_object(tail):
        file.write(b"\n")
        end, start = end + 1, end + 1
    file.truncate(start)
    file.flush()
    os.fsync(file.fileno())
    return end - start


def _after_last_newline(file: BinaryIO, end: int) -> int:
    """The position behind the last newline; 0 if there is none."""
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _is_object(text: bytes) -> bool:
    # A number or a word could be the beginning of a longer one; an object is closed or it is not.
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
