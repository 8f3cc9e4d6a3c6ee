"""Generate hybridbench(1) from the help of the commands; ``make man`` writes it to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperGroup

from hybridbench import __version__
from hybridbench.cli.app import app
from hybridbench.cli.user_settings import Context


def man_page() -> str:
    """The page in the man macros of groff."""
    command = typer.main.get_command(app)
    context = command.make_context("hybridbench", [], resilient_parsing=True)
    lines = [
        f'.TH HYBRIDBENCH 1 "" "hybridbench {_plain(__version__)}" "User Commands"',
        ".SH NAME",
        f"hybridbench \\- {_plain(command.help or '').rstrip('.')}",
        ".SH SYNOPSIS",
        ".B hybridbench",
        "[OPTIONS] COMMAND [ARGS]...",
        ".SH COMMANDS",
        *_commands(context),
    ]
    return "\n".join(lines) + "\n"


def _commands(context: Context) -> Iterator[str]:
    """A section for the command of ``context`` and for each of its sub-commands."""
    command = context.command
    yield f".SS {_plain(context.command_path)}"
    yield _plain(" ".join(command.collect_usage_pieces(context)))
    for paragraph in (command.help or "").split("\n\n"):
        yield ".PP"
        yield _plain(" ".join(paragraph.split()))
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield ".TP"
            yield f".B {_plain(record[0])}"
            yield _plain(" ".join(record[1].split())) or "\\&"
    if command.epilog:
        yield ".PP"
        yield _plain(" ".join(command.epilog.split()))
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            yield from _commands(
                below.make_context(name, [], parent=context, resilient_parsing=True)
            )


def _plain(text: str) -> str:
    """``text`` with groff's special characters and requests escaped."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{text}" if text.startswith((".", "\\(aq")) else text


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(man_page(), encoding="utf-8")
