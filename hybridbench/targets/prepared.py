"""Prepared engines on disk: list them, find the one that a command belongs to, remove them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from hybridbench.foundation.errors import ErrorCode, RunDirectoryError, UsageError
from hybridbench.foundation.foreign import ForeignDataError, read_json
from hybridbench.records.codec import by_name, from_json
from hybridbench.records.json_value import json_text
from hybridbench.records.prepared import Package, PreparedTarget

READY: Final = "target.json"
PARTIAL: Final = "preparing.json"
_LOCK: Final = "lock"

_Stored = TypeVar("_Stored", bound=msgspec.Struct)


class Partial(msgspec.Struct, frozen=True):
    """The progress of preparing a target.

    Attributes:
        name: of the target.
        python: version of the interpreter; "" until the environment is created.
        planned: everything to install; empty until that is known.
        installed: names of the packages already installed.
        note: as in the prepared target.
        seconds: spent so far.
    """

    name: str = ""
    python: str = ""
    planned: tuple[Package, ...] = ()
    installed: tuple[str, ...] = ()
    note: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Entry:
    """One folder under the targets folder: ``ready``, or begun and not finished."""

    folder: Path
    ready: PreparedTarget | None
    partial: Partial | None


def entries(root: Path) -> list[Entry]:
    """Return the targets under ``root``, prepared or begun, by name."""
    if not root.is_dir():
        return []
    found = (entry_of(folder) for folder in sorted(root.iterdir()))
    return [one for one in found if one is not None]


def entry_of(folder: Path) -> Entry | None:
    """Return the target in ``folder``; None if the folder is not one of ours."""
    ready, partial = _read(folder / READY, PreparedTarget), _read(folder / PARTIAL, Partial)
    return Entry(folder, ready, partial) if ready is not None or partial is not None else None


def ready_target(engine: str, release: str, root: Path) -> tuple[Path, PreparedTarget]:
    """Return the folder of a release under ``root``, and what was installed there.

    Raises:
        UsageError: it is not prepared.
    """
    folder, name = root / f"{engine}-{release}", f"{engine}=={release}"
    entry = entry_of(folder) if folder.is_dir() else None
    if entry is None or entry.ready is None:
        raise UsageError(
            f"{name} is not prepared in {root}: hybridbench target prepare {name}",
            code=ErrorCode.NOT_FOUND,
        )
    return folder, entry.ready


def holds_something_else(folder: Path) -> bool:
    """Return whether ``folder`` has files that are not ours."""
    return entry_of(folder) is None and any(one.name != _LOCK for one in folder.iterdir())


def prepared_target(command: Sequence[str]) -> PreparedTarget | None:
    """Find the prepared target whose start script or interpreter ``command`` runs.

    Finds it behind a wrapper such as ``env`` or ``taskset`` as well; None for any other program.
    """
    for word in command:
        if os.sep not in word:
            continue
        path = Path(word).absolute()
        # Try both: the word may be a link to a start script, and our interpreters are links.
        for one in dict.fromkeys((path, path.resolve())):
            for folder in one.parents:
                ready = _read(folder / READY, PreparedTarget)
                if ready is not None:
                    return ready
    return None


def save(folder: Path, record: PreparedTarget | Partial) -> None:
    """Write ``record`` atomically."""
    path = folder / (READY if isinstance(record, PreparedTarget) else PARTIAL)
    beside = path.with_suffix(".new")
    beside.write_text(json_text(by_name(record)), encoding="utf-8")
    beside.replace(path)


def remove(entry: Entry) -> None:
    """Delete a target; packages shared with other targets remain there.

    Raises:
        RunDirectoryError: the target is being prepared right now.
    """
    with locked(entry.folder):
        shutil.rmtree(entry.folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a lock on ``folder``; it is released however this process ends.

    Raises:
        RunDirectoryError: another process holds the lock.
    """
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunDirectoryError(
                f"{folder} is being prepared by another process.", code=ErrorCode.NOT_WRITABLE
            ) from error
        yield
    finally:
        os.close(handle)


def disk_bytes(folder: Path) -> tuple[int, int]:
    """Return the bytes of ``folder`` on disk, and the part of it in files that have other links."""
    total = shared = 0
    seen: set[int] = set()
    for place, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(Path(place, name))
            if status.st_ino in seen:
                continue
            seen.add(status.st_ino)
            total += 512 * status.st_blocks
            shared += 512 * status.st_blocks if status.st_nlink > 1 else 0
    return total, shared


def _read(path: Path, kind: type[_Stored]) -> _Stored | None:
    try:
        stored = read_json(path)
    except (OSError, ForeignDataError):
        return None
    try:
        return from_json(stored, kind) if isinstance(stored, dict) else None
    except msgspec.ValidationError:
        return None
