"""Processes of our own: what they import, and an environment that nobody here has to read."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def import_path() -> str:
    """A PYTHONPATH with which a child imports what this process would, also from a checkout."""
    return os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)


def with_environment(settings: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """``command`` with ``settings`` on top of the caller's environment.

    ``env`` sets them and becomes the command, pid and all.
    """
    env = shutil.which("env") or "/usr/bin/env"
    return [env, *(f"{name}={value}" for name, value in settings.items()), *command]
