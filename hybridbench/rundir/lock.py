"""One writer per run directory: a lock that the kernel releases however its owner ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.records.documents import writing
from hybridbench.rundir.layout import LOCK

# Index in /proc/PID/stat of starttime, field 22 in proc(5), counted after the process name.
_BEGUN_FIELD: Final = 19


@contextlib.contextmanager
def locked_run(run_dir: Path) -> Iterator[None]:
    """Hold the lock of ``run_dir``; the lock file names this process, and is removed at the end.

    The file alone is not a lock: one left behind by a killed process is taken over.

    Raises:
        RunDirectoryError: another process is writing this run, or locking fails here.
    """
    path = run_dir / LOCK
    handle = _locked_handle(path)
    try:
        os.ftruncate(handle, 0)
        # A full disk may have no room for the PID; the lock is valid without it.
        with contextlib.suppress(OSError):
            os.write(handle, f"{os.getpid()}\n{_begun(os.getpid())}\n".encode())
        yield
    finally:
        # Unlink while still locked: the next locker then sees that its file was removed.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def holder_of(run_dir: Path) -> int | None:
    """Return the PID in the lock file of ``run_dir`` if that process is still alive, else None.

    Does not try to take the lock, which another process might need at that moment.  PIDs are
    reused, so the file also records when its process began.
    """
    try:
        pid_line, _, begun = (run_dir / LOCK).read_text("ascii").partition("\n")
        pid = int(pid_line)
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError, ValueError):
        return None
    now = _begun(pid)
    return None if begun.strip() and now and begun.strip() != now else pid


def _begun(pid: int) -> str:
    """Start time of the process ``pid``, in clock ticks since boot; empty if unknown."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    # The name in parentheses may contain anything, including parentheses and spaces.
    fields = stat.rpartition(")")[2].split()
    return fields[_BEGUN_FIELD] if len(fields) > _BEGUN_FIELD else ""


def _locked_handle(path: Path) -> int:
    while True:
        with writing(f"open {path}"):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 64).decode("ascii", "replace").partition("\n")[0]
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
    """Whether ``path`` still names the open file, which its previous owner may have removed."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
