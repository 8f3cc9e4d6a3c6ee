"""Processes of our own: what they import, and an environment that nobody here has to read."""

from __future__ import annotations

import math
import os
import shutil
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

# `python -m` and `-c` would look in the working directory before the standard library: whatever
# lies there under the name of one of our modules would be run in its place.
SAFE_PATH: Mapping[str, str] = {"PYTHONSAFEPATH": "1"}

# A child gets what it is to do from its command line alone: while this is set, a command takes no
# option from another variable or from a file of its working directory.
NO_USER_SETTINGS = "HYBRIDBENCH_NO_SETTINGS"

# What the bundled engine imports, and hybridbench-core comes without.
ENGINE_PACKAGES: Final = ("torch", "safetensors")

_POLL_S: Final = 0.02
_KILL_PATIENCE_S: Final = 10.0
_KILL_MOST_S: Final = 60.0


def missing_engine_packages() -> list[str]:
    """What the bundled engine needs and is not installed here."""
    return [name for name in ENGINE_PACKAGES if not _is_installed(name)]


def require_engine_packages() -> None:
    """
    Raises:
        ConfigError: a package that the bundled engine needs is not installed.
    """
    for name in missing_engine_packages():
        raise no_engine(name)


def no_engine(name: str) -> ConfigError:
    """That the bundled engine cannot be used here, as the package ``name`` is not installed."""
    return ConfigError(
        f"this needs the bundled engine, and {name} is not installed here: `pip install "
        "hybridbench` brings what it needs, hybridbench-core does without.",
        code=ErrorCode.NOT_FOUND,
    )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


def own_command(command: Sequence[str], settings: Mapping[str, str] | None = None) -> list[str]:
    """``command``, a Python of ours, so that it imports what this process does and nothing of the
    working directory, and takes no option from there; with ``settings`` on top of the caller's
    environment.
    """
    ours = {**SAFE_PATH, NO_USER_SETTINGS: "1", "PYTHONPATH": import_path()}
    return with_environment({**ours, **(settings or {})}, command)


def import_path() -> str:
    """A PYTHONPATH with which a child imports what this process would, also from a checkout.

    Without the directory that Python puts in front by itself: that of the script, or the working
    one.
    """
    entries = [str(Path(entry).resolve()) for entry in _without_start() if entry]
    root = str(Path(hybridbench.__file__).resolve().parents[1])
    found = PathFinder.find_spec("hybridbench", entries)
    if found is None or found.origin is None:
        entries.append(root)
    elif Path(found.origin).resolve().parents[1] != Path(root):
        # Another release is installed here, and this process runs a checkout.
        at = entries.index(str(Path(found.origin).parents[1]))
        entries.insert(at, root)
    return os.pathsep.join(entries)


def with_environment(settings: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """``command`` with ``settings`` on top of the caller's environment.

    ``env`` sets them and becomes the command, pid and all.
    """
    env = shutil.which("env") or "/usr/bin/env"
    return [env, *(f"{name}={value}" for name, value in settings.items()), *command]


def await_end(
    process: subprocess.Popen[Any], patience_s: float, most_s: float = math.inf
) -> int | None:
    """The exit code of ``process``; None if it has not ended.

    Args:
        patience_s: how long it may take, counting the time in which it could have run.
        most_s: how long this may take in all.
    """
    could_run, begun_s = RunnableTime(process.pid), time.monotonic()
    while (code := process.poll()) is None:
        if could_run.elapsed_s() >= patience_s or time.monotonic() - begun_s >= most_s:
            return None
        time.sleep(_POLL_S)
    return code


def await_killed(process: subprocess.Popen[Any]) -> int | None:
    """The exit code of ``process``, which was sent SIGKILL.

    None for one that the kernel has not ended in a minute: it waits for a disk that does not
    answer, say.  Nobody can do more, and nobody should wait for it.
    """
    return await_end(process, _KILL_PATIENCE_S, _KILL_MOST_S)


def _without_start() -> list[str]:
    first, *rest = sys.path
    if sys.flags.safe_path:
        return [first, *rest]
    start = {Path.cwd().resolve(), Path(sys.argv[0] if sys.argv else "").resolve().parent}
    return rest if Path(first).resolve() in start else [first, *rest]
