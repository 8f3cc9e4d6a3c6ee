"""Find another interpreter or environment, and the engine that it can run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import hybridbench
from hybridbench.foundation.errors import ConfigError, ErrorCode, UsageError
from hybridbench.targets.background_process import answer_of
from hybridbench.targets.bundled import (
    FORMER_WORKER_MODULE,
    WORKER_MODULE,
    WorkerProgram,
)

_PATIENCE_S = 120.0
_OWN, _CHECKOUT = "installed there", "this checkout"
# Prints the Python version, then the worker's module, or the module that is missing.
_ASK = f"""\
import importlib, platform
print(platform.python_version())
for worker, setup in (
    ("{WORKER_MODULE}", "{WORKER_MODULE}.setup"),
    ("{FORMER_WORKER_MODULE}", "{FORMER_WORKER_MODULE}_setup"),
):
    try:
        importlib.import_module(setup)
    except ImportError as error:
        answer = f"missing {{error.name or error}}"
        if error.name != worker:
            break
    else:
        answer = f"found {{worker}}"
        break
print(answer)
"""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that can run an engine; ``engine_from`` describes the engine's origin."""

    program: WorkerProgram
    version: str
    engine_from: str


def find_interpreter(path: str) -> Interpreter:
    """Return the interpreter at ``path``, or that of the environment in the directory ``path``.

    It runs the engine that it has installed, or the one of this checkout if it has none.

    Raises:
        UsageError: there is no interpreter.
        ConfigError: it cannot import an engine; the missing module is named.
    """
    given = Path(path).expanduser()
    # Do not resolve the link: Python finds its environment from the path of the link.
    executable = (given / "bin" / "python" if given.is_dir() else given).absolute()
    if not executable.is_file():
        raise UsageError(
            f"python:{path}: no interpreter; name one, or an environment with bin/python in it.",
            code=ErrorCode.NOT_FOUND,
        )
    version, word, module = _ask(executable, "", path)
    if word == "found":
        return Interpreter(WorkerProgram(str(executable), "", module), version, _OWN)
    if module.split(".")[0] != "hybridbench":
        raise _missing(path, module)
    checkout = str(Path(hybridbench.__file__).parents[1])
    version, word, module = _ask(executable, checkout, path)
    if word != "found":
        raise _missing(path, module)
    program = WorkerProgram(str(executable), checkout, module)
    return Interpreter(program, version, _CHECKOUT)


def _missing(path: str, module: str) -> ConfigError:
    return ConfigError(
        f"python:{path}: it has no {module}, without which the engine does not run; install "
        "hybridbench's dependencies there."
    )


def _ask(executable: Path, search_path: str, path: str) -> tuple[str, str, str]:
    command = [str(executable), "-c", _ASK]
    try:
        answer = answer_of(command, _PATIENCE_S, {"PYTHONPATH": search_path})
    except OSError as error:
        raise ConfigError(f"python:{path}: it cannot be started: {error}.") from error
    if answer.timed_out:
        raise ConfigError(
            f"python:{path}: it did not report its versions within {_PATIENCE_S:.0f} s; check that "
            '`-c "import torch"` works there.'
        )
    lines = answer.output.decode("utf-8", "replace").splitlines()
    if answer.exit_code != 0 or len(lines) < 2:
        last = (answer.errors.strip().splitlines() or ["it printed nothing"])[-1]
        raise ConfigError(f"python:{path}: it does not run Python code: {last}.")
    word, _, module = lines[1].partition(" ")
    return lines[0], word, module
