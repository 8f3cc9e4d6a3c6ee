"""One writer per run directory: a lock that the kernel releases, whatever ends its owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from hybridbench.errors import RunDirectoryError
from hybridbench.rundir.layout import LOCK


@contextlib.contextmanager
def locked_run(run_dir: Path) -> Iterator[None]:
    """Hold the lock of ``run_dir``; its file names the process and goes with it.

    The file alone means nothing: what a killed process left behind is taken over.

    Raises:
        RunDirectoryError: another process writes this run, or there can be no lock here.
    """
    path = run_dir / LOCK
    handle = _locked_handle(path)
    try:
        os.ftruncate(handle, 0)
        # A full disk has no room for the name; the lock holds all the same.
        with contextlib.suppress(OSError):
            os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        # While it is still locked: whoever waits for this file finds that it is no longer the one.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def _locked_handle(path: Path) -> int:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunDirectoryError(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 32).decode("ascii", "replace").strip()
            os.close(handle)
            raise _refusal(path, owner, error) from error
        if _is_same_file(path, handle):
            return handle
        os.close(handle)


def _refusal(path: Path, owner: str, error: OSError) -> RunDirectoryError:
    if isinstance(error, BlockingIOError):
        who = f"process {owner}" if owner else "another process"
        return RunDirectoryError(
            f"{path.parent} is being written by {who}; wait for its end or stop it first"
        )
    return RunDirectoryError(f"cannot lock {path}: {error.strerror}")


def _is_same_file(path: Path, handle: int) -> bool:
    """Whether ``path`` still names the open file: its last owner may have removed it meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
