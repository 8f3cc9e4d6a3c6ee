"""Options set by the environment or a file: they override defaults, not the command line."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from typer.core import TyperGroup, TyperOption

from hybridbench.foundation.errors import ConfigError, ErrorCode, UsageError, full_stop, nearest
from hybridbench.foundation.safe_output import echo
from hybridbench.targets.own_process import NO_USER_SETTINGS

_PREFIX = "HYBRIDBENCH"
_OWN_FILE, _PROJECT_FILE = Path("hybridbench.toml"), Path("pyproject.toml")
_KEPT = "hybridbench.user_settings"
# Similarity above which an unknown variable counts as a misspelt option.
_NEAR = 0.85


# Typer does not export the types of its private click.
Context: TypeAlias = Any
Command: TypeAlias = Any
Parameter: TypeAlias = Any
_running: ContextVar[Context | None] = ContextVar("running", default=None)


@dataclass(frozen=True)
class Setting:
    """A value as it would be typed (a list for a repeatable option), and where it is set."""

    value: str | bool | list[str]
    origin: str


def load_settings(context: Context) -> None:
    """Read the command's options from the environment, else from a file, into ``context``.

    Warn on standard error about variables that look like misspelt options.

    Raises:
        ConfigError: the file is not valid TOML, or has an unknown key or a value of a wrong type.
        UsageError: a variable cannot be split into words.
    """
    if os.environ.get(NO_USER_SETTINGS):
        return
    _warn_of_unknown(context)
    settings = {**_of_file(context), **_of_environment(context)}
    context.default_map = {name: setting.value for name, setting in settings.items()}
    context.meta[_KEPT] = settings


@contextmanager
def during(context: Context) -> Iterator[None]:
    """Within the block, ``typed_command`` returns the command line of ``context``."""
    token = _running.set(context)
    try:
        yield
    finally:
        _running.reset(token)


def origin_of(context: Context | None, parameter: Parameter | None) -> str | None:
    """Where the value of ``parameter`` is set; None for the command line and defaults."""
    if context is None or parameter is None:
        return None
    source = context.get_parameter_source(parameter.name)
    if source is None or source.name != "DEFAULT_MAP":
        return None
    settings: Mapping[str, Setting] = context.meta[_KEPT]
    return settings[parameter.name].origin


def origin_of_first(context: Context, options: Iterable[str]) -> str | None:
    """Where the first of ``options`` that was not typed is set; None if all were typed."""
    by_option = {name: one for one in context.command.params for name in one.opts}
    origins = (origin_of(context, by_option.get(option)) for option in options)
    return next((origin for origin in origins if origin is not None), None)


def typed_command() -> tuple[str, ...]:
    """The typed command line, with the options from the environment and the file added."""
    typed = sys.argv[1:]
    context = _running.get()
    if context is None:
        return ("hybridbench", *typed)
    depth = len(_path(context))
    added = [
        word
        for parameter in context.command.params
        if origin_of(context, parameter) is not None
        for word in _words(parameter, context.params[parameter.name])
    ]
    return ("hybridbench", *typed[:depth], *added, *typed[depth:])


def _words(parameter: Parameter, value: object) -> list[str]:
    option = option_name(parameter)
    if isinstance(value, bool):
        return [option] if value else parameter.secondary_opts[:1]
    values = value if isinstance(value, list | tuple) else [value]
    return [word for one in values for word in (option, str(one))]


def option_name(parameter: Parameter) -> str:
    """The long name of an option."""
    return next(str(name) for name in parameter.opts if name.startswith("--"))


def _path(context: Context) -> list[str]:
    """The command's words after ``hybridbench``."""
    if context.parent is None:
        return []
    return [*_path(context.parent), context.info_name or ""]


def _settable(command: Command) -> dict[str, TyperOption]:
    """Options by key: the long name without its leading dashes."""
    return {
        option_name(one).removeprefix("--"): one
        for one in command.params
        if isinstance(one, TyperOption)
    }


def _of_environment(context: Context) -> dict[str, Setting]:
    found = {}
    for key, option in _settable(context.command).items():
        name = _variable(*_path(context), key)
        text = os.environ.get(name)
        if text:
            found[option.name] = Setting(_split(name, text) if option.multiple else text, name)
    return found


def _variable(*words: str) -> str:
    return "_".join((_PREFIX, *words)).replace("-", "_").upper()


def _warn_of_unknown(context: Context) -> None:
    """Warn about misspelt variables; merely sharing our prefix is not enough."""
    known = {NO_USER_SETTINGS, *_variables(context.find_root().command)}
    for name in sorted(set(os.environ) - known):
        if not name.startswith(f"{_PREFIX}_"):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
        if near:
            said = f"{name} sets no option and has no effect; did you mean {near[0]}?"
            echo(f"hybridbench: {said}", err=True)


def _variables(command: Command, *words: str) -> Iterator[str]:
    """The variables of all options of ``command`` and its sub-commands."""
    if isinstance(command, TyperGroup):
        for word, below in command.commands.items():
            yield from _variables(below, *words, word)
    else:
        yield from (_variable(*words, key) for key in _settable(command))


def _split(name: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{name}: {text} cannot be split into words: {error}.", code=ErrorCode.BAD_VALUE
        ) from error


def _of_file(context: Context) -> dict[str, Setting]:
    path, prefix = _OWN_FILE, ""
    table = _read(path)
    if table is None:
        path, prefix = _PROJECT_FILE, "tool.hybridbench."
        tools = (_read(path) or {}).get("tool")
        table = tools.get("hybridbench") if isinstance(tools, dict) else None
    if table is None:
        return {}
    # Check every table, not only the command's: a misspelt one would have no effect.
    every = _settings(f"{path}: {prefix}", table, context.find_root().command)
    return {
        option.name: setting for command, option, setting in every if command is context.command
    }


def _read(path: Path) -> dict[str, object] | None:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}.", code=ErrorCode.NOT_READABLE
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}.", code=ErrorCode.DAMAGED) from error


def _settings(
    place: str, table: object, command: Command
) -> Iterator[tuple[Command, TyperOption, Setting]]:
    if not isinstance(table, dict):
        raise ConfigError(f"{place.rstrip('.: ')}: write a table.", code=ErrorCode.BAD_VALUE)
    for key, value in table.items():
        if isinstance(command, TyperGroup):
            below = command.commands.get(key)
            if below is None:
                raise _unknown(place, key, command.commands, "no command")
            yield from _settings(f"{place}{key}.", value, below)
            continue
        options = _settable(command)
        option = options.get(key.replace("_", "-"))
        if option is None:
            raise _unknown(place, key, options, "no option")
        yield command, option, Setting(_typed(f"{place}{key}", value, option), f"{place}{key}")


def _unknown(place: str, key: str, known: Mapping[str, object], what: str) -> ConfigError:
    said = full_stop(f"{place}{key}: {what}; {nearest(key, known)}")
    return ConfigError(said, code=ErrorCode.UNKNOWN_NAME)


def _typed(place: str, value: object, option: TyperOption) -> str | bool | list[str]:
    """Convert ``value`` to its command-line form; numbers and dates become text."""
    scalar = not isinstance(value, bool | list | dict)
    if option.is_flag and isinstance(value, bool):
        return value
    if option.multiple and isinstance(value, list):
        if not any(isinstance(one, bool | list | dict) for one in value):
            return [str(one) for one in value]
    elif scalar and not option.is_flag:
        return [str(value)] if option.multiple else str(value)
    wanted = "true or false" if option.is_flag else "one value"
    wanted += " or an array" if option.multiple else ""
    raise ConfigError(f"{place}: write {wanted}.", code=ErrorCode.BAD_VALUE)
