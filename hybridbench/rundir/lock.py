"""One writer per run directory: a lock that the kernel releases, whatever ends its owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hybridbench.foundation.errors import ErrorCode, RunDirectoryError
from hybridbench.rundir.layout import LOCK

# Of /proc/PID/stat, counted from what follows the name: field 22 in proc(5).
_BEGUN_FIELD: Final = 19


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
            os.write(handle, f"{os.getpid()}\n{_begun(os.getpid())}\n".encode())
        yield
    finally:
        # While it is still locked: whoever waits for this file finds that it is no longer the one.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def holder_of(run_dir: Path) -> int | None:
    """The process that the lock file of ``run_dir`` names, if that very process still lives.

    Only looks: to try the lock would refuse it to whoever wants it at this moment.  Numbers of
    processes come again, so the file also tells when its own began.
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
    """When the process ``pid`` began, in ticks since the machine did; empty if nothing says."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    # The name in brackets may hold anything, brackets and spaces included.
    fields = stat.rpartition(")")[2].split()
    return fields[_BEGUN_FIELD] if len(fields) > _BEGUN_FIELD else ""


def _locked_handle(path: Path) -> int:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunDirectoryError(
                f"cannot open {path}: {error.strerror}", code=ErrorCode.NOT_WRITABLE
            ) from error
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
    """Whether ``path`` still names the open file: its last owner may have removed it meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
