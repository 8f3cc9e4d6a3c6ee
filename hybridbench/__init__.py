"""hybridbench: a soak-test and leak-regression bench for hybrid LLM inference engines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridbench.rundir.loaded import Run

__version__ = "0.1.0"
__all__ = ["__version__", "load_run"]


def load_run(path: str | os.PathLike[str]) -> Run:
    """The run stored in the directory ``path``: manifest, series, events, verdict and findings.

    Raises:
        RunDirectoryError: there is no run, or a later version wrote it.
    """
    # Imported here: every process of ours imports this file, and few need numpy.
    from hybridbench.rundir import loaded

    return loaded.load_run(Path(path))
