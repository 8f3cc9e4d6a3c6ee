"""Files in /dev/shm: memory that stays until they are unlinked, although no process maps them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hybridbench.foundation.metrics import SHM_FILES

_BLOCK_BYTES = 512
_FILES_MAX = 20_000


class ShmFilesSource:
    """The files of a target's user in its /dev/shm that were made since this object.

    Nothing tells which process has made a file that is closed: other programs of the user count.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._folder = proc / str(pid) / "root" / "dev" / "shm"
        self._process = proc / str(pid)
        self._before = {found.st_ino for found in self._files()}
        self._has_some = False

    def read(self) -> Mapping[str, float]:
        """Return their memory; empty before the first one, and once the process is gone."""
        try:
            user = self._process.stat().st_uid
        except OSError:
            return {}
        sizes = [
            found.st_blocks * _BLOCK_BYTES
            for found in self._files()
            if found.st_uid == user and found.st_ino not in self._before
        ]
        self._has_some = self._has_some or bool(sizes)
        return {SHM_FILES: float(sum(sizes))} if self._has_some else {}

    def _files(self) -> Iterator[os.stat_result]:
        try:
            with os.scandir(self._folder) as entries:
                for _, entry in zip(range(_FILES_MAX), entries, strict=False):
                    try:
                        yield entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
        except OSError:
            return
