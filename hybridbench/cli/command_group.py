"""Groups of commands: sections in their help, and usage errors as one sentence each."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

# typer's own click; it exports these classes under no public name.
from typer._click.core import Context
from typer._click.exceptions import (
    MissingParameter,
    NoArgsIsHelpError,
    NoSuchOption,
    UsageError,
)
from typer._click.formatting import HelpFormatter
from typer.core import TyperGroup

from hybridbench.errors import ExitCode
from hybridbench.safe_output import echo, one_line

# Help sections of the top level, in order; commands of a group without sections are one list.
SECTIONS: Mapping[str, Sequence[str]] = {
    "Run": ("soak", "compare", "bisect", "nightly", "selftest", "bench"),
    "Read results": ("report", "diagnose", "history", "judge", "prune"),
    "Look up": ("list", "explain", "profiles"),
}


class CommandGroup(TyperGroup):
    """What ``typer.Typer(cls=...)`` makes of the application and of its groups."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line; ends the process as typer does, with one sentence for an error."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except NoArgsIsHelpError as error:
            error.show()
            sys.exit(int(ExitCode.USAGE))
        except UsageError as error:
            echo(sentence(error), err=True)
            sys.exit(int(ExitCode.USAGE))
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Every command with its whole summary, by sections where the group has some."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = {
            name: command.get_short_help_str(limit=1000)
            for name, command in commands.items()
            if command is not None and not command.hidden
        }
        sections = {
            title: [name for name in names if name in rows] for title, names in SECTIONS.items()
        }
        if ctx.parent is not None:
            sections = {}
        named = {name for names in sections.values() for name in names}
        sections["Other commands" if named else "Commands"] = [n for n in rows if n not in named]
        for title, names in sections.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, rows[name]) for name in names])


def sentence(error: UsageError) -> str:
    """What is wrong on a command line, where, and what to do instead."""
    command = error.ctx.command_path if error.ctx is not None else "hybridbench"
    see = f"'{command} -h' lists what it takes"
    match error:
        case NoSuchOption(option_name=name):
            near = difflib.get_close_matches(name, _options(error.ctx), n=1)
            advice = f"did you mean {near[0]}?" if near else f"{see}."
            said = f"there is no option {name}; {advice}"
        case MissingParameter():
            said = f"{error.format_message().rstrip('.')}; {see}."
        case typer.BadParameter():
            said = f"{error.format_message().rstrip('.')}."
        case _:
            said = f"{error.format_message().rstrip('.')}"
            said = said.replace(". Did you mean", "; did you mean")
            said = said if said.endswith("?") else f"{said}; {see}."
    said = said.replace("Value error, ", "").replace(": Input should", ": it should")
    return one_line(f"{command}: {said[0].lower()}{said[1:]}")


def _options(ctx: Context | None) -> list[str]:
    parameters = [] if ctx is None else ctx.command.params
    return [name for parameter in parameters for name in parameter.opts if name.startswith("-")]
