"""YAML as plain data that remembers the line of every key, so that an error can point at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from hybridbench.errors import ConfigError

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Source:
    """Parsed YAML and where it came from; ``lines`` maps a key path to its line, from 1."""

    origin: str
    data: dict[str, object]
    lines: dict[KeyPath, int]

    def place(self, path: Sequence[str | int]) -> str:
        """``origin:line`` of ``path``, or of its nearest ancestor that the file has."""
        for length in range(len(path), 0, -1):
            line = self.lines.get(tuple(path[:length]))
            if line is not None:
                return f"{self.origin}:{line}"
        return self.origin


def read_yaml(path: Path, what: str = "profile") -> Source:
    """The mapping in the file at ``path``; ``what`` it is meant to be stands in errors.

    Raises:
        ConfigError: if it cannot be read, or is not one YAML mapping without repeated keys.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise ConfigError(f"{path}: the {what} cannot be read: {reason}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8; a {what} is YAML.") from error
    return parse_yaml(text, str(path), what)


def parse_yaml(text: str, origin: str, what: str = "profile") -> Source:
    """The mapping in ``text``; ``origin`` names it in errors.

    Raises:
        ConfigError: one sentence with the line, as for ``read_yaml``.
    """
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            found = "is empty" if root is None else "is not a mapping"
            raise ConfigError(f"{origin}: the {what} {found}; it must hold keys such as name:.")
        lines = dict(_walk(root, (), origin))
        data = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{origin}{line}: malformed YAML: {error.problem}.") from error
    except RecursionError as error:
        raise ConfigError(f"{origin}: malformed YAML: it contains itself.") from error
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{origin}: malformed YAML: {reason}.") from error
    return Source(origin, data, lines)


def parse_scalar(text: str) -> object:
    """What ``text`` would be as the value of a key; text that is no YAML is itself."""
    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError:
        # A floor such as >5/min begins like a block scalar.
        return text
    return text if value is None and text.strip().lower() not in ("null", "~") else value


def _walk(node: yaml.Node, path: KeyPath, origin: str) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(node, yaml.MappingNode):
        yield from _walk_mapping(node, path, origin)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, index), item.start_mark.line + 1
            yield from _walk(item, (*path, index), origin)
    elif isinstance(node, yaml.ScalarNode) and ":" in node.value:
        _refuse_base_sixty(node, path, origin)


def _walk_mapping(
    node: yaml.MappingNode, path: KeyPath, origin: str
) -> Iterator[tuple[KeyPath, int]]:
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        name = str(key.value)
        if name in seen:
            # YAML would keep the last one without a word.
            dotted = dotted_path((*path, name))
            first = seen[name]
            raise ConfigError(f"{origin}:{line}: {dotted} is given twice, first on line {first}.")
        seen[name] = line
        yield (*path, name), line
        yield from _walk(value, (*path, name), origin)


def _refuse_base_sixty(node: yaml.ScalarNode, path: KeyPath, origin: str) -> None:
    # YAML 1.1 reads a plain 1:30 as ninety, and nobody who writes it is sure of what.
    if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
        line = node.start_mark.line + 1
        raise ConfigError(
            f"{origin}:{line}: {dotted_path(path)}: {node.value} is ambiguous; "
            f"write 90s, 1h30m or 1.5h."
        )


def dotted_path(path: Sequence[str | int]) -> str:
    """``pools.kv_tokens``, ``promise.0.rss``: as ``--set`` takes it."""
    return ".".join(str(step) for step in path)
