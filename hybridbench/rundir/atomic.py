"""Atomic replacement of whole files: a killed writer leaves either the old text or the new."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from hybridbench.records.documents import writing


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` with ``text`` in UTF-8: write a temporary file, flush it to disk, rename it.

    Raises:
        RunDirectoryError: the directory cannot be written; the old file is untouched.
    """
    # A unique name per writer: two reports of the same run may be rendered at once.
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}.part")
    with writing(f"write {path}"):
        try:
            with beside.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make new names in ``path`` survive a power failure, if the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
