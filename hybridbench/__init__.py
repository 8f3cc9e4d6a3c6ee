"""hybridbench: a soak-test and leak-regression bench for hybrid LLM inference engines."""

from __future__ import annotations

# Import nothing here: `python -m hybridbench` runs this file while the working directory may still
# precede the standard library on sys.path.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from hybridbench.rundir.loaded import Run

__version__ = "0.1.0"
__all__ = ["__version__", "load_run"]


def load_run(path: str | os.PathLike[str]) -> Run:
    """Load the run stored in ``path``: its manifest, series, events, verdict and findings.

    Raises:
        RunDirectoryError: there is no run, or a later version wrote it.
    """
    # Imported here because all our processes import this file, and few need numpy.
    from pathlib import Path

    from hybridbench.rundir import loaded

    return loaded.load_run(Path(path))
