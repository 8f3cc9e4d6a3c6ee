"""Command groups: help in sections, and usage errors as one sentence each."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from hybridbench.cli.user_settings import (
    Context,
    during,
    load_settings,
    option_name,
    origin_of,
    origin_of_first,
)
from hybridbench.foundation.errors import ErrorCode, ExitCode, UsageError, full_stop, nearest
from hybridbench.foundation.safe_output import named_output

# Help sections of the top level, in order; commands of a group without sections are one list.
SECTIONS: Mapping[str, Sequence[str]] = {
    "Begin": ("demo",),
    "Run": ("soak", "watch", "compare", "bisect", "nightly", "selftest", "serve"),
    "Read results": ("report", "diagnose", "history", "judge", "prune"),
    "Look up": ("list", "explain", "profiles"),
    "Prepare": ("target", "probe"),
}


# Typer passes and raises types of its private copy of click, which it does not export.
Formatter: TypeAlias = Any
_BRACES = re.compile(r"^\{(.*)\}(?:\.\.\.)?$")
_BRACKETS = re.compile(r"^\[\[(.*)\]\]$")
_DOTS = re.compile(r"^(.*\.\.\.\]+)\.\.\.$")
_TYPE = re.compile(r" <.*>$")


class Command(TyperCommand):
    """A command with options from several sources, which its help groups by panel."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Load settings, except for help and completion, which must work with an invalid file."""
        if not ctx.resilient_parsing and not set(args) & set(ctx.help_option_names):
            load_settings(ctx)
            self._refuse_two_values(ctx, args)
        with named_output():
            return super().parse_args(ctx, args)

    def _refuse_two_values(self, ctx: Context, args: list[str]) -> None:
        """Refuse two values for a single-valued option: typer drops all but the last.

        Repeated equal values and flags are accepted: a script may append an option to its caller's.

        Raises:
            UsageError: names the option and its values.
        """
        single = [
            one
            for one in self.params
            if isinstance(one, TyperOption) and not one.is_flag and not one.multiple
        ]
        parser = self.make_parser(ctx)
        for option in single:
            parser.add_option(option, option.opts, option.name, action="append")
        given, _, _ = parser.parse_args(list(args))
        for option in single:
            values = list(dict.fromkeys(given.get(option.name, ())))
            if len(values) > 1:
                raise UsageError(
                    f"{_place(ctx)}{option_name(option)} takes one value, and is given "
                    f"{' and '.join(values)}; keep one of them.",
                    code=ErrorCode.OPTION_CONFLICT,
                )

    def invoke(self, ctx: Context) -> Any:
        """Run the command; an error about an option says where the option was set.

        Raises:
            UsageError: the command's, prefixed with the environment variable or the file's key.
        """
        try:
            with during(ctx):
                return super().invoke(ctx)
        except UsageError as error:
            origin = origin_of_first(ctx, error.options)
            if origin is None:
                raise
            raise error.reworded(f"{origin}: {error}") from error

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """Show arguments as their metavars, without the braces that typer adds, and without the
        brackets and dots that click adds to those that a metavar already has.
        """
        pieces = (_BRACES.sub(r"\1", piece) for piece in super().collect_usage_pieces(ctx))
        return [_BRACKETS.sub(r"[\1]", _DOTS.sub(r"\1", piece)) for piece in pieces]

    def format_options(self, ctx: Context, formatter: Formatter) -> None:
        """Write arguments, then options by panel."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx)
            if record is not None:
                name, text = record
                if isinstance(one, TyperOption):
                    rows = panels.setdefault(one.rich_help_panel or "Options", [])
                    rows.append((name, _ranges_in_words(text)))
                else:
                    panels["Arguments"].append((_TYPE.sub("", name), text))
        panels["Options"] = panels.pop("Options")
        for title, rows in panels.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class CommandGroup(TyperGroup):
    """The group class for ``typer.Typer(cls=...)``, used by the application and its groups."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and exit the process, as typer does.

        Raises:
            UsageError: the command line is invalid; one sentence and a code.
        """
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.TyperException as raised:
            error: Any = raised
            if _is(error, "NoArgsIsHelpError"):
                error.show()
                sys.exit(int(ExitCode.USAGE))
            if not _is(error, "UsageError"):
                raise
            raise usage_error(error) from raised
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse as typer does; this also prints the help."""
        with named_output():
            return super().parse_args(ctx, args)

    def format_commands(self, ctx: Context, formatter: Formatter) -> None:
        """Write every command with its full summary, in sections if the group has any."""
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


def _ranges_in_words(text: str) -> str:
    text = re.sub(r"x>=([\d.]+)", r"at least \1", text)
    return re.sub(r"([\d.]+)<=x<=([\d.]+)", r"\1 to \2", text)


# Typer has no separate class for these errors; only the message distinguishes them.
_BY_MESSAGE = {
    "No such command": ErrorCode.UNKNOWN_COMMAND,
    "Got unexpected extra": ErrorCode.EXTRA_ARGUMENT,
    "Option ": ErrorCode.MISSING_ARGUMENT,
    "Missing command": ErrorCode.MISSING_ARGUMENT,
}
_NOT_A_CHOICE = re.compile(r"(?:Value error, )?'(.*?)' is not one of (.+)", re.DOTALL)


def _is(error: BaseException, name: str) -> bool:
    """Whether ``error`` is of the class ``name``, which typer raises but does not export."""
    return any(one.__name__ == name for one in type(error).__mro__)


def usage_error(error: Any) -> UsageError:
    """Translate typer's ``error``: what is wrong on the command line, where, and the remedy."""
    command = error.ctx.command_path if error.ctx is not None else "hybridbench"
    origin = None
    if isinstance(error, typer.BadParameter):
        origin = origin_of(error.ctx, error.param)
    prefix = _place(error.ctx) if origin is None else ""
    see = f"see '{command} --help'"
    message = error.format_message().rstrip(".")
    if _is(error, "NoSuchOption"):
        name = error.option_name
        advice = nearest(name, _options(error.ctx), see)
        sentence, code = full_stop(f"there is no option {name}; {advice}"), ErrorCode.UNKNOWN_OPTION
    elif _is(error, "MissingParameter"):
        sentence, code = f"{_lower(message)}; {see}.", ErrorCode.MISSING_ARGUMENT
    elif isinstance(error, typer.BadParameter):
        sentence, code = _bad_value(error, origin)
    else:
        known = (code for start, code in _BY_MESSAGE.items() if message.startswith(start))
        code = next(known, ErrorCode.USAGE)
        sentence = _lower(message).replace(". Did you mean", "; did you mean")
        sentence += _elsewhere(error.ctx, message)
        sentence = sentence if sentence.endswith("?") else f"{sentence}; {see}."
    return UsageError(f"{prefix}{sentence}", code=code)


def _place(ctx: Context | None) -> str:
    """The prefix of an error message: the command's words after ``hybridbench``."""
    words = "" if ctx is None else ctx.command_path.removeprefix("hybridbench").lstrip()
    return f"{words}: " if words else ""


def _elsewhere(ctx: Context | None, message: str) -> str:
    """Suggest a top-level command if a group's wrong word names one: ``list profiles``."""
    root = None if ctx is None else ctx.find_root()
    word = re.fullmatch(r"No such command '([^']*)'", message)
    if root is None or root is ctx or word is None or not isinstance(root.command, TyperGroup):
        return ""
    return f"; did you mean 'hybridbench {word[1]}'?" if word[1] in root.command.commands else ""


def _bad_value(error: typer.BadParameter, origin: str | None) -> tuple[str, ErrorCode]:
    from pydantic import ValidationError

    from hybridbench.workload.validation import complaint

    name = origin or (error.param.opts[0] if error.param is not None else "value")
    choice = _NOT_A_CHOICE.fullmatch(error.message)
    if choice is not None:
        value, choices = choice[1], re.findall(r"'(.*?)'", choice[2])
        near = difflib.get_close_matches(value, choices, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        return f"{name} {value}: choose one of {', '.join(choices)}{hint}", ErrorCode.UNKNOWN_CHOICE
    wrong = error.message.rstrip(".")
    if isinstance(error.__cause__, ValidationError):
        wrong = complaint(error.__cause__.errors(include_url=False)[0])
    return f"{name}: {wrong}.", ErrorCode.BAD_VALUE


def _lower(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"


def _options(ctx: Context | None) -> list[str]:
    parameters = [] if ctx is None else ctx.command.params
    return [name for parameter in parameters for name in parameter.opts if name.startswith("-")]
