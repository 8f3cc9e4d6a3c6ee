"""``hybridbench target``: install and try third-party servers, for ``watch`` and ``soak``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.command_group import Command, CommandGroup
from hybridbench.cli.options import FOLDER_OF_TARGETS, targets_root
from hybridbench.foundation.errors import ErrorCode, UsageError, full_stop, nearest
from hybridbench.foundation.safe_output import echo, one_line
from hybridbench.foundation.units import format_bytes, format_duration

if TYPE_CHECKING:
    from hybridbench.targets.prepared import Entry

app = typer.Typer(
    cls=CommandGroup,
    help="Install servers of other projects for `watch`: vLLM, SGLang, llama.cpp.",
    no_args_is_help=True,
)

_DIR = Annotated[
    Path | None,
    typer.Option("--targets", metavar="DIR", help=FOLDER_OF_TARGETS, show_default=False),
]


@app.command("prepare", cls=Command)
def prepare(
    target: Annotated[
        str,
        typer.Argument(metavar="ENGINE==RELEASE", help="Such as llamacpp==2026.10.11549."),
    ],
    directory: _DIR = None,
) -> None:
    """Install a server with pip in a folder of its own, and try it by one completion.

    Example: hybridbench target prepare llamacpp==2026.10.11549

    Engines: vllm, sglang and llamacpp. All run on a CPU, with tiny random checkpoints made on the
    spot. sglang-cache and vllm-core are SGLang and vLLM without server and model, for
    `soak --target`. After an interruption, run the same command again. pip looks where its
    configuration says; what cannot be had is refused before anything large is fetched.
    """
    # Imported here: `--help` should not wait for it.
    from hybridbench.targets.driven import driven_release
    from hybridbench.targets.engines.catalog import named_engine
    from hybridbench.targets.prepare import prepare as prepare_target
    from hybridbench.targets.prepared import disk_bytes

    engine, release = named_engine(target)
    if engine.releases:
        driven_release(target)
    root = targets_root(directory)
    ready = prepare_target(engine, release, root, os.environ, lambda line: echo(line, err=True))
    folder = root / f"{engine.name}-{release}"
    total, shared = disk_bytes(folder)
    of_others = f", {format_bytes(shared)} of it shared with other targets" if shared else ""
    echo(f"{ready.name} is ready: {format_bytes(total)} on disk{of_others}; prepared in "
         f"{format_duration(ready.seconds)}")  # fmt: skip
    if ready.note:
        echo(f"Note: {one_line(ready.note)}")
    given = "" if directory is None else f" --targets {shlex.quote(str(directory))}"
    echo(f"hybridbench soak --target {ready.name}{one_line(given)}")
    for server in ready.servers:
        echo(f"hybridbench watch -- {one_line(str(folder / 'bin' / server))} --port 8101")


@app.command("list", cls=Command)
def list_all(directory: _DIR = None) -> None:
    """List the prepared targets, with their size and their start scripts.

    Example: hybridbench target list
    """
    from hybridbench.targets.prepared import disk_bytes, entries

    root = targets_root(directory)
    found = entries(root)
    for entry in found:
        total, _ = disk_bytes(entry.folder)
        size = format_bytes(total)
        if entry.ready is None:
            name = entry.partial.name if entry.partial else entry.folder.name
            echo(f"{name}  {size}  not finished: hybridbench target prepare {name}")
            continue
        scripts = "  ".join(one_line(str(entry.folder / "bin" / s)) for s in entry.ready.servers)
        echo(f"{entry.ready.name}  {size}  {scripts}")
    if not found:
        echo(f"no prepared targets in {one_line(str(root))}")


@app.command("remove", cls=Command)
def remove(
    target: Annotated[
        str, typer.Argument(metavar="ENGINE==RELEASE", help="As `target list` names it.")
    ],
    directory: _DIR = None,
) -> None:
    """Delete a prepared target, or one that was begun.

    Example: hybridbench target remove llamacpp==2026.10.11549
    """
    from hybridbench.targets.prepared import disk_bytes, entries
    from hybridbench.targets.prepared import remove as remove_target

    root = targets_root(directory)
    by_name = {_name(entry): entry for entry in entries(root)}
    entry = by_name.get(target)
    if entry is None:
        there = nearest(target, by_name, f"there are {', '.join(by_name) or 'none'}")
        raise UsageError(
            full_stop(f"no target {target!r} is prepared in {root}; {there}"),
            code=ErrorCode.UNKNOWN_NAME,
        )
    total, shared = disk_bytes(entry.folder)
    remove_target(entry)
    echo(f"removed {target}: {format_bytes(total - shared)} freed")


def _name(entry: Entry) -> str:
    record = entry.ready or entry.partial
    return record.name if record is not None and record.name else entry.folder.name
