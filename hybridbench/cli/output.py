"""``--output FORMAT=FILE``: write a report to a file, pipe or terminal, never over evidence."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridbench.cli.options import ReportFormat
from hybridbench.foundation.errors import (
    ErrorCode,
    RunDirectoryError,
    UsageError,
    full_stop,
    nearest,
)
from hybridbench.foundation.safe_output import emit


@dataclass(frozen=True)
class ReportFile:
    """A file to write the report to, and its format."""

    format: ReportFormat
    path: Path


def given_outputs(
    texts: Sequence[str] | None, allowed: Iterable[str] = ReportFormat
) -> tuple[ReportFile, ...]:
    """Parse the values of --output.

    Raises:
        UsageError: a value is not FORMAT=FILE, its format is not ``allowed``, its file cannot be
            written, or two formats have the same file.
    """
    files: dict[Path, ReportFile] = {}
    names = [str(name) for name in allowed]
    for text in texts or ():
        name, equals, file = text.partition("=")
        if not equals or not file:
            raise UsageError(
                f"{text}: write FORMAT=FILE, for example json=report.json.", option="--output"
            )
        if name not in names:
            raise UsageError(
                full_stop(f"{text}: there is no format {name}; {nearest(name, names)}"),
                code=ErrorCode.UNKNOWN_CHOICE,
                option="--output",
            )
        wanted = ReportFile(ReportFormat(name), Path(file))
        check_place("--output", wanted.path)
        if files.setdefault(wanted.path.absolute(), wanted) != wanted:
            raise UsageError(
                f"{file} is to get two formats; name another file for one of them.",
                code=ErrorCode.OPTION_CONFLICT,
                option="--output",
            )
    return tuple(files.values())


def write_output(path: Path, text: str) -> None:
    """Write ``text`` to ``path``.

    A regular file is replaced atomically.  Pipes, terminals and targets of symbolic links are
    opened and written, as by a shell's ``>``.

    Raises:
        UsageError: ``path`` is part of a stored result, a directory or a disk, or not writable.
    """
    _refuse_results("--output", path)
    try:
        found = path.stat()
    except OSError:
        found = None
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise _not_writable("--output", f"{path}: that is a directory; name a file in it.")
    if found is not None and stat.S_ISBLK(found.st_mode):
        raise _not_writable("--output", f"{path}: that is a block device; name a file.")
    if found is not None and _is_stdout(found):
        emit(text)
    elif path.is_symlink() or (found is not None and not stat.S_ISREG(found.st_mode)):
        _write_into(path, text)
    else:
        _replace(path, text)


def check_place(option: str, path: Path | None) -> None:
    """Refuse early a file that could not be written hours later.

    Raises:
        UsageError: it is part of a stored result or a directory, or its directory is missing.
    """
    if path is None:
        return
    _refuse_results(option, path)
    if path == Path("-"):
        raise UsageError(
            "-: that would be a file of this name; --format prints to standard output.",
            option=option,
        )
    if path.is_dir():
        raise _not_writable(option, f"{path}: that is a directory; name a file in it.")
    if not path.absolute().parent.is_dir():
        raise UsageError(
            f"{path}: there is no directory {path.parent}.", code=ErrorCode.NOT_FOUND, option=option
        )


def check_directory(option: str, path: Path | None) -> None:
    """Refuse a directory that cannot be made because it, or a parent, is a file.

    Raises:
        UsageError: names that file.
    """
    if path is None:
        return
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise _not_writable(option, f"{path}: {place} is not a directory; choose another one.")


def _not_writable(option: str, sentence: str) -> UsageError:
    return UsageError(sentence, code=ErrorCode.NOT_WRITABLE, option=option)


def _refuse_results(option: str, path: Path) -> None:
    from hybridbench.rundir.layout import EVENTS, MANIFEST, MARKERS, RECORDED, SAMPLES

    # Check the path as given, and the target of its symbolic links.
    for place in (path, Path(os.path.realpath(path))):
        if place.name in {MANIFEST, SAMPLES, EVENTS}:
            raise _not_writable(
                option, f"{path}: that is the name of a run's evidence; choose another."
            )
        if place.name in RECORDED and any((place.parent / name).exists() for name in MARKERS):
            raise _not_writable(
                option,
                f"{path}: {place.name} belongs to the stored result in {place.parent}; "
                "choose another name.",
            )


def _is_stdout(found: os.stat_result) -> bool:
    """Whether it is the file behind standard output, such as /dev/stdout.

    Two independent writers to one file would overwrite each other.
    """
    try:
        return os.path.samestat(found, os.fstat(1))
    except OSError:
        return False


def _write_into(path: Path, text: str) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise _not_writable("--output", f": cannot write {path}: {error.strerror}.") from error


def _replace(path: Path, text: str) -> None:
    from hybridbench.rundir.atomic import write_atomically

    try:
        write_atomically(path, text)
    except RunDirectoryError as error:
        raise UsageError(f": {error}.", code=error.code, option="--output") from error
