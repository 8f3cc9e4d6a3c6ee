"""What a worker writes to stderr: a file of bounded size whose last lines outlive the worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

FILE_BYTES_MAX = 4 * 2**20
_KEPT_BYTES = 256 * 2**10


class StderrFile:
    """The worker writes; the parent reads the tail, and cuts the file when it grows too long."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open_for_worker(self) -> BinaryIO:
        """A handle to pass to the new process; close it afterwards.

        It appends: each write goes to the present end, also after the parent cut the file.
        """
        return self.path.open("ab", buffering=0)

    def tail(self, lines: int = 60, bytes_max: int = 16 * 1024) -> list[str]:
        """The last ``lines`` lines, from the last ``bytes_max`` bytes."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - bytes_max))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return text.splitlines()[-lines:]

    def trim(self) -> bool:
        """Keep only the end of a file that has grown beyond ``FILE_BYTES_MAX``; True if it had.

        What the worker writes during the cut may be lost: a chatty worker must not fill the disk.
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
