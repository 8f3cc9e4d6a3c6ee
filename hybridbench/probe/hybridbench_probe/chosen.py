"""Select the Python processes below a watched command that get a probe.

Regular expressions in the environment select them.  The default is the command and its children
with the same interpreter, such as multiprocessing workers and its own modules, but not installers,
one-line commands or the multiprocessing resource tracker.
"""

from __future__ import annotations

import os

DIRECTORY = "HYBRIDBENCH_PROBE_DIR"
INSTRUMENT = "HYBRIDBENCH_PROBE_INSTRUMENT"

_TOOLS = frozenset(
    {
        *("pip", "pip3", "uv", "uvx", "pipx", "easy_install", "get-pip.py", "ensurepip"),
        *("venv", "virtualenv", "conda", "mamba", "poetry", "build", "wheel", "setup.py"),
        *("ninja", "cmake", "meson", "git", "git-lfs"),
        *("compileall", "py_compile", "sysconfig", "site"),
    }
)
# Interpreter options that take their argument from the next word.
_OPTIONS_WITH_WORD = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_WORKER_OF_MULTIPROCESSING = ("multiprocessing.spawn", "multiprocessing.forkserver")
_BOOKKEEPER = "multiprocessing.resource_tracker"
_ANCESTORS_MAX = 16


def is_wanted(folder: str, patterns: str) -> bool:
    """Whether ``patterns``, one regular expression per line, or the default select this process."""
    words = command_of("self")
    kind, program = program_of(words)
    if kind == "-c" and _BOOKKEEPER in program:
        return False
    above = _probed_ancestor(folder)
    if kind == "-c" and any(name in program for name in _WORKER_OF_MULTIPROCESSING):
        # A worker belongs to the process that started it, whatever its name.
        return above == os.getppid()
    named = [line for line in patterns.splitlines() if line.strip()]
    if named:
        return any(_matches(words, line.strip()) for line in named)
    if _is_tool(kind, program):
        return False
    return above is None or (kind != "-c" and _same_interpreter(above))


def command_of(pid: str) -> list[str]:
    """The words of a command line; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            data = file.read(1 << 20)
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in data.rstrip(b"\0").split(b"\0")]


def program_of(words: list[str]) -> tuple[str, str]:
    """The program in an interpreter's command: ("-m", module), ("-c", code) or ("", script)."""
    rest = iter(words[1:])
    for word in rest:
        if word in _OPTIONS_WITH_WORD:
            next(rest, "")
        elif word[:2] in {"-m", "-c"}:
            return word[:2], word[2:] or next(rest, "")
        elif word.startswith("-") and not word.startswith("--") and word[-1:] in {"m", "c"}:
            return f"-{word[-1]}", next(rest, "")
        elif not word.startswith("-"):
            return "", word
    return "", ""


def _is_tool(kind: str, program: str) -> bool:
    name = program.partition(".")[0] if kind == "-m" else os.path.basename(program)
    return kind != "-c" and name in _TOOLS


def _matches(words: list[str], pattern: str) -> bool:
    """Whether the regular expression ``pattern`` matches any part of the command line."""
    import re

    return re.search(pattern, " ".join(words)) is not None


def _probed_ancestor(folder: str) -> int | None:
    """The nearest ancestor process with a probe; None without one."""
    pid = os.getppid()
    for _ in range(_ANCESTORS_MAX):
        if pid <= 1:
            return None
        if os.path.exists(os.path.join(folder, f"{pid}.sock")):
            return pid
        pid = _parent_of(pid)
    return None


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _same_interpreter(pid: int) -> bool:
    try:
        return os.path.samefile("/proc/self/exe", f"/proc/{pid}/exe")
    except OSError:
        return False
