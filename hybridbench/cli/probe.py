"""``hybridbench probe``: export the folder for the PYTHONPATH of a watched program."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from hybridbench.cli.command_group import Command, CommandGroup
from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.foundation.safe_output import echo, one_line

app = typer.Typer(
    cls=CommandGroup,
    help="Export the probe that counts objects inside a watched Python program.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Keep ``export`` a sub-command, although it is the only one."""


@app.command("export", cls=Command)
def export(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Where to copy it to: a directory that is new, empty or an earlier copy.",
        ),
    ],
) -> None:
    """Copy the probe into a directory, for a container image.

    Example: hybridbench probe export image/probe
    """
    from hybridbench.probe import FOLDER

    if folder.exists() and not (
        folder.is_dir() and _held(folder) <= _held(FOLDER) | {"__pycache__"}
    ):
        raise UsageError(
            f"{one_line(str(folder))} exists and is neither empty nor an earlier copy.",
            code=ErrorCode.NOT_EMPTY,
        )
    try:
        _copy(FOLDER, folder)
    except OSError as error:
        # copytree collects failures below the folder in one error, which then has no strerror.
        reason = error.strerror or "not every file could be written"
        raise UsageError(
            f"cannot copy the probe to {one_line(str(folder))}: {reason}.",
            code=ErrorCode.NOT_WRITABLE,
        ) from error
    echo(
        f"Copied to {one_line(str(folder))}: start the program with PYTHONPATH set to this folder "
        "and HYBRIDBENCH_PROBE_DIR to a directory of mode 0700, a container with the process ids "
        "of the host; then, as the same user, run hybridbench watch --pid PID."
    )


def _copy(source: Path, folder: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "__init__.py")
    shutil.copytree(
        source,
        folder,
        dirs_exist_ok=True,
        ignore=lambda place, names: (
            ignored(place, names) if Path(place) == source else {"__pycache__"} & set(names)
        ),
    )


def _held(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
