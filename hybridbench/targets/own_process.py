"""Start our own child processes: their imports, and an environment free of user settings."""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import hybridbench
from hybridbench.foundation.errors import ConfigError, ErrorCode
from hybridbench.sampling.runnable_time import RunnableTime

# `python -m` and `-c` would search the working directory before the standard library, and so run
# any file there that has the name of one of our modules.
SAFE_PATH: Mapping[str, str] = {"PYTHONSAFEPATH": "1"}

# A child takes its instructions from its command line alone: while this is set, a command reads no
# option from another variable or from a file in its working directory.
NO_USER_SETTINGS = "HYBRIDBENCH_NO_SETTINGS"

# Imports of the bundled engine that hybridbench-core does not install.
ENGINE_PACKAGES: Final = ("torch", "safetensors")

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_POLL_S: Final = 0.02
_KILL_PATIENCE_S: Final = 10.0
_KILL_MOST_S: Final = 60.0


def missing_engine_packages() -> list[str]:
    """Return the packages that the bundled engine needs and that are not installed."""
    return [name for name in ENGINE_PACKAGES if not _is_installed(name)]


def require_engine_packages() -> None:
    """Check that the packages that the bundled engine needs are installed.

    Raises:
        ConfigError: one of them is not.
    """
    for name in missing_engine_packages():
        raise no_engine(name)


def no_engine(name: str) -> ConfigError:
    """Build the error for a bundled engine that cannot run because ``name`` is not installed."""
    return ConfigError(
        f"this needs the bundled engine, and {name} is not installed here: run "
        "`pip install hybridbench`; hybridbench-core does not include it.",
        code=ErrorCode.NOT_FOUND,
    )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


def own_command(command: Sequence[str], settings: Mapping[str, str] | None = None) -> list[str]:
    """Prepare ``command``, one of our Python programs, to run with the imports of this process.

    It takes neither modules nor options from the working directory.  ``settings`` are added to the
    caller's environment.
    """
    ours = {**SAFE_PATH, NO_USER_SETTINGS: "1", "PYTHONPATH": import_path()}
    return with_environment({**ours, **(settings or {})}, command)


def import_path() -> str:
    """Return a PYTHONPATH that gives a child the same imports as this process, even in a checkout.

    It omits the directory that Python itself puts first: that of the script, or the working
    directory.
    """
    entries = [str(Path(entry).resolve()) for entry in _without_start() if entry]
    root = str(Path(hybridbench.__file__).resolve().parents[1])
    found = PathFinder.find_spec("hybridbench", entries)
    if found is None or found.origin is None:
        entries.append(root)
    elif Path(found.origin).resolve().parents[1] != Path(root):
        # Another release is installed here, but this process runs from a checkout.
        at = entries.index(str(Path(found.origin).parents[1]))
        entries.insert(at, root)
    return os.pathsep.join(entries)


def with_environment(settings: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Prefix ``command`` with ``env``, to add ``settings`` to the caller's environment.

    ``env`` sets them and then becomes the command, with the same pid.
    """
    env = shutil.which("env") or "/usr/bin/env"
    return [env, *(f"{name}={value}" for name, value in settings.items()), *command]


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent ends: for a child, before exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def await_end(
    process: subprocess.Popen[Any], patience_s: float, most_s: float = math.inf
) -> int | None:
    """Wait for ``process`` and return its exit code; None if it has not ended.

    Args:
        patience_s: limit on the process's runnable time.
        most_s: limit on the elapsed time.
    """
    could_run, begun_s = RunnableTime(process.pid), time.monotonic()
    while (code := process.poll()) is None:
        if could_run.elapsed_s() >= patience_s or time.monotonic() - begun_s >= most_s:
            return None
        time.sleep(_POLL_S)
    return code


def await_killed(process: subprocess.Popen[Any]) -> int | None:
    """Wait for ``process``, which was sent SIGKILL, and return its exit code.

    Returns None if the kernel has not ended it within a minute, for example because a disk does
    not respond.  Nothing more can be done then, and further waiting is useless.
    """
    return await_end(process, _KILL_PATIENCE_S, _KILL_MOST_S)


def _without_start() -> list[str]:
    first, *rest = sys.path
    if sys.flags.safe_path:
        return [first, *rest]
    start = {Path.cwd().resolve(), Path(sys.argv[0] if sys.argv else "").resolve().parent}
    return rest if Path(first).resolve() in start else [first, *rest]
