"""Environment variables that this process sets for itself, and the user's original environment."""

from __future__ import annotations

import os

_given: dict[str, str | None] = {}


def set_for_ourselves() -> None:
    """Set the variables that this process and its own Python children need."""
    # The analysis uses small matrices and shares the CPU with an engine: one thread is fastest.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if name not in os.environ:
            _set(name, "1")
    # No Python child, process pools included, may import from the working directory.
    _set("PYTHONSAFEPATH", "1")


def of_the_user() -> dict[str, str]:
    """The environment as this process received it, for the user's own programs."""
    environment = {**os.environ}
    for name, value in _given.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def _set(name: str, value: str) -> None:
    _given.setdefault(name, os.environ.get(name))
    os.environ[name] = value
