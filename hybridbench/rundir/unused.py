"""The directory of something that did not begin: taken away, unless anything was measured in it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from hybridbench.rundir.layout import BLOCKS, COMPARISON, EVENTS, MANIFEST, SAMPLES, WORKER_STDERR

# What is written before the first sample.
_WRITTEN: Final = frozenset({MANIFEST, SAMPLES, EVENTS, WORKER_STDERR, COMPARISON, BLOCKS})


def remove_unused(directory: Path) -> bool:
    """Take ``directory`` away if no sample was stored below it; whether it is gone.

    Only files that we write are deleted: with anything else in it, the directory stays.
    """
    with contextlib.suppress(OSError):
        if any(path.stat().st_size for path in directory.rglob(SAMPLES)):
            return False
        for folder, _, files in os.walk(directory, topdown=False):
            for name in _WRITTEN.intersection(files):
                (Path(folder) / name).unlink()
            os.rmdir(folder)
    return not directory.exists()
