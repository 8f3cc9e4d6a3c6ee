"""Parse YAML to plain data with the line of every key, so that errors can point at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from yaml.constructor import ConstructorError

from hybridbench.foundation.errors import ConfigError, ErrorCode
from hybridbench.foundation.foreign import (
    DEPTH_MAX,
    INT_MAX,
    INT_MIN,
    KIB,
    ForeignDataError,
    read_text,
)

KeyPath = tuple[str | int, ...]

# A profile has a hundred lines.  Parsing YAML takes seconds per megabyte.
_BYTES_MAX: Final = 256 * KIB
_NODES_MAX: Final = 20_000
_SHOWN_CHARS: Final = 60
_DEEP: Final = f"it is nested more than {DEPTH_MAX} levels deep, or contains itself"


@dataclass(frozen=True)
class Source:
    """Parsed YAML and its origin; ``lines`` maps a key path to its line, from 1."""

    origin: str
    data: dict[str, object]
    lines: dict[KeyPath, int]

    def place(self, path: Sequence[str | int]) -> str:
        """Return ``origin:line`` of ``path``, or of its nearest ancestor in the file."""
        line = self.line(path)
        return f"{self.origin}:{line}" if line else self.origin

    def line(self, path: Sequence[str | int]) -> int:
        """Return the line of ``path``, or of its nearest ancestor in the file; 0 without any."""
        above = (tuple(path[:length]) for length in range(len(path), 0, -1))
        return next((self.lines[key] for key in above if key in self.lines), 0)


def read_yaml(path: Path, what: str = "profile") -> Source:
    """Return the mapping in the file at ``path``; errors say that it should be a ``what``.

    Raises:
        ConfigError: if it cannot be read, or is not one YAML mapping without repeated keys.
    """
    try:
        text = read_text(path, _BYTES_MAX)
    except ForeignDataError as error:
        raise ConfigError(
            f"{path}: {error}; a {what} is a file of YAML.", code=ErrorCode.NOT_READABLE
        ) from error
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise ConfigError(
            f"{path}: the {what} cannot be read: {reason}.", code=ErrorCode.NOT_READABLE
        ) from error
    return parse_yaml(text, str(path), what)


def parse_yaml(text: str, origin: str, what: str = "profile") -> Source:
    """Return the mapping in ``text``; errors name ``origin``.

    Raises:
        ConfigError: one sentence with the line, as for ``read_yaml``.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            found = "is empty" if root is None else "is not a mapping"
            raise ConfigError(f"{origin}: the {what} {found}; it must hold keys such as name:.")
        lines = dict(_walk(_Counted(origin), root, ()))
        data = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{origin}{line}: malformed YAML: {error.problem}.") from error
    except RecursionError as error:
        raise ConfigError(f"{origin}: malformed YAML: {_DEEP}.") from error
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{origin}: malformed YAML: {reason}.") from error
    return Source(origin, data, lines)


def parse_scalar(text: str) -> object:
    """Return what ``text`` would be as the value of a key; invalid YAML is returned unchanged."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        # A value on the command line may be a mapping, as deep and large as a file.
        if root is not None:
            dict(_walk(_Counted(text[:_SHOWN_CHARS]), root, ()))
        value: object = None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, RecursionError):
        # A floor such as >5/min begins like a block scalar.
        return text
    return text if value is None and text.strip().lower() not in ("null", "~") else value


class _Loader(yaml.SafeLoader):
    """A loader that refuses values that do not match their tag or number format; names the line."""

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803
        """Refuse deep nesting here, because the scanner would take quadratic time."""
        if self.flow_level > DEPTH_MAX:
            raise ConstructorError(None, None, _DEEP, self.get_mark())
        super().fetch_flow_collection_start(TokenClass)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            value: object = super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise _misfit(node, f"is no {node.tag.rpartition(':')[2]}") from error
        if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
            raise _misfit(node, "is a whole number beyond 64 bits")
        return value


def _misfit(node: yaml.Node, problem: str) -> ConstructorError:
    shown = str(node.value) if isinstance(node, yaml.ScalarNode) else "this"
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]}..."
    return ConstructorError(None, None, f"{shown} {problem}", node.start_mark)


@dataclass
class _Counted:
    """Counts visited nodes, and an alias each time it is used."""

    origin: str
    nodes: int = 0

    def enter(self, path: KeyPath) -> None:
        self.nodes += 1
        if self.nodes > _NODES_MAX:
            raise ConfigError(
                f"{self.origin}: more than {_NODES_MAX} values, aliases counted wherever they are "
                "used; write less."
            )
        if len(path) > DEPTH_MAX:
            raise ConfigError(f"{self.origin}: malformed YAML: {_DEEP}.")


def _walk(walked: _Counted, node: yaml.Node, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    walked.enter(path)
    if isinstance(node, yaml.MappingNode):
        yield from _walk_mapping(walked, node, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, index), item.start_mark.line + 1
            yield from _walk(walked, item, (*path, index))
    elif isinstance(node, yaml.ScalarNode) and ":" in node.value:
        _refuse_base_sixty(node, path, walked.origin)


def _walk_mapping(
    walked: _Counted, node: yaml.MappingNode, path: KeyPath
) -> Iterator[tuple[KeyPath, int]]:
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{walked.origin}:{line}: a key must be a word, not a list or a map.")
        name = str(key.value)
        if name in seen:
            # YAML would silently keep the last one.
            dotted = dotted_path((*path, name))
            first = seen[name]
            raise ConfigError(
                f"{walked.origin}:{line}: {dotted} is given twice, first on line {first}."
            )
        seen[name] = line
        yield (*path, name), line
        yield from _walk(walked, value, (*path, name))


def _refuse_base_sixty(node: yaml.ScalarNode, path: KeyPath, origin: str) -> None:
    # YAML 1.1 parses 1:30 as 90 (sexagesimal), which few users expect.
    if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
        line = node.start_mark.line + 1
        raise ConfigError(
            f"{origin}:{line}: {dotted_path(path)}: {node.value} is ambiguous; "
            f"write 90s, 1h30m or 1.5h."
        )


def dotted_path(path: Sequence[str | int]) -> str:
    """Format ``path`` as for ``--set``: ``pools.kv_tokens``, ``promise.0.rss``."""
    return ".".join(str(step) for step in path)
