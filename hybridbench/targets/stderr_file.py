"""A worker's stderr: a file of bounded size, which keeps the last lines when the worker ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

FILE_BYTES_MAX = 4 * 2**20
_KEPT_BYTES = 256 * 2**10


class StderrFile:
    """The worker writes; the parent reads the tail, and truncates the file when it is too long."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open_for_worker(self) -> BinaryIO:
        """Open the file for the new process; close the handle after passing it on.

        It is in append mode: each write goes to the current end, even after a truncation.
        """
        return self.path.open("ab", buffering=0)

    def tail(self, lines: int = 60, bytes_max: int = 16 * 1024) -> list[str]:
        """Return the last ``lines`` lines, from the last ``bytes_max`` bytes."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - bytes_max))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return text.splitlines()[-lines:]

    def trim(self) -> bool:
        """Keep only the end of a file larger than ``FILE_BYTES_MAX``; return whether it was larger.

        Output during the truncation may be lost: a verbose worker must not fill the disk.
        """
        try:
            if self.path.stat().st_size <= FILE_BYTES_MAX:
                return False
        except FileNotFoundError:
            return False
        with self.path.open("r+b") as file:
            file.seek(-_KEPT_BYTES, os.SEEK_END)
            kept = file.read()
            file.seek(0)
            file.truncate()
            file.write(b"[earlier lines were cut]\n" + kept)
        return True
