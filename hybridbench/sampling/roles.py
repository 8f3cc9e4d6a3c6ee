"""Name processes in samples and reports: by their own title, else by the program they run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hybridbench.sampling.redaction import redacted_text

_ROLE_CHARS: Final = 60
# Python options that take a value.
_PYTHON_VALUES: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_PYTHON: Final = re.compile(r"(python|pypy)[\d.]*t?$")
# Roles of processes that may still set a title.
UNTITLED: Final = frozenset({"multiprocessing.spawn", "multiprocessing.forkserver"})
_MULTIPROCESSING: Final = re.compile(r"from multiprocessing\.(\w+) import")


def role_of_command(command: Sequence[str]) -> str:
    """Return a process's own title (``VLLM::EngineCore``), else its program.

    For Python, that is the script or module.
    """
    words = [word for word in command if word]
    if not words:
        return "unnamed"
    if len(words) == 1 and re.search(r"[: ]", words[0]):
        return _role_of_title(words[0])
    program = Path(words[0]).name
    role = _python_program(words[1:]) if _PYTHON.match(program) else program
    return _clean(role or program)


def _role_of_title(title: str) -> str:
    """Return the constant part of ``title``: ``gunicorn: worker`` of ``gunicorn: worker [app]``."""
    first, *rest = re.sub(r"[\[({].*", "", title).split() or ["unnamed"]
    return _clean(f"{first} {rest[0]}" if first.endswith(":") and rest else Path(first).name)


def _python_program(words: list[str]) -> str:
    """Return the script, module or multiprocessing part that Python runs with these arguments."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        if word in ("-m", "-c") or (word[:2] in ("-m", "-c") and len(word) > 2):
            value = word[2:] or (words[at + 1] if at + 1 < len(words) else "")
            if word[1] == "m":
                return value
            part = _MULTIPROCESSING.match(value)
            return f"multiprocessing.{part[1]}" if part else ""
        at += 2 if word in _PYTHON_VALUES else 1
    return Path(words[at]).name.removesuffix(".py") if at < len(words) else ""


def _clean(role: str) -> str:
    printable = "".join(char for char in redacted_text(role) if char.isprintable())
    return printable.strip()[:_ROLE_CHARS] or "unnamed"
