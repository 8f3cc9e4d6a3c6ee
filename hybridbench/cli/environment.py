"""The variables that this process sets for itself, and the environment of its user without them."""

from __future__ import annotations

import os

_given: dict[str, str | None] = {}


def set_for_ourselves() -> None:
    """Set what this process and the Pythons that it starts for itself need."""
    # The analysis works on small matrices beside a busy engine: one thread is fastest.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if name not in os.environ:
            _set(name, "1")
    # Whatever Python this process starts (pools of processes, too) leaves the working directory be.
    _set("PYTHONSAFEPATH", "1")


def of_the_user() -> dict[str, str]:
    """The environment as it was given: for a program that is the user's own."""
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
