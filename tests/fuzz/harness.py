"""Run one case: damage a valid input and read it in this process, under a time limit."""

from __future__ import annotations

import io
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from unittest.mock import patch

from hybridbench.cli.app import main
from hybridbench.foundation import foreign
from hybridbench.foundation.errors import ExitCode, HybridbenchError
from hybridbench.foundation.safe_output import echo, escape_unencodable, one_line
from tests.fuzz.corpus import DAMAGED, KINDS, SINGLE, Action
from tests.fuzz.mutations import mutate

_SENTENCES_MAX = 21
# CPU time; a case that only waits is ended by the test's own time-out.
BUDGET_S = 20.0
# How long a reader waits for a pipe without a writer.
_PATIENCE_S = 0.2
_ENCODINGS = ("utf-8", "ascii", "latin-1")
_ANALYSIS = "/hybridbench/analysis/"


class HangError(BaseException):
    """A case took longer than its budget; a BaseException, so that no handler catches it."""


@dataclass(frozen=True)
class Case:
    """The result of a case; ``problem`` is empty if there was none."""

    kind: str
    seed: int
    did: str
    problem: str = ""
    in_analysis: bool = False


def run_case(kind: str, seed: int, valid: Path, folder: Path) -> Case:
    """Damage a copy of ``valid`` in ``folder``, read it, and return what is wrong."""
    rng = Random(f"{kind}-{seed}")
    shutil.copytree(valid, folder)
    files = sorted(p for glob in KINDS[kind].damaged for p in folder.glob(glob) if p.is_file())
    if kind in SINGLE:
        chosen = rng.choice(files)
        files = [chosen.rename(folder / DAMAGED)]
    did = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        there = [path for path in files if path.is_file() and not path.is_symlink()]
        there = [path for path in there if path.stat().st_size < 2**30]
        if there:
            did.append(mutate(rng.choice(there), rng))
    action = KINDS[kind].actions(folder, rng)
    encoding = rng.choice(_ENCODINGS)
    told = f"{'; '.join(did)} -> {'a call' if callable(action) else ' '.join(action[:2])}"
    problem, in_analysis = _problem(action, encoding)
    return Case(kind, seed, told, problem, in_analysis)


def _problem(action: Action, encoding: str) -> tuple[str, bool]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    try:
        with (
            _alarm(BUDGET_S),
            patch.object(foreign, "_PATIENCE_S", _PATIENCE_S),
            redirect_stdout(out),
            redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            escape_unencodable()
            code = _code(action)
    except HangError:
        return f"no end in {BUDGET_S:g} s of processor time:\n{traceback.format_exc()}", False
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in trace if "/hybridbench/" in frame.filename]
        said = "".join(traceback.format_exception(error))
        return said, bool(frames) and _ANALYSIS in frames[-1].filename
    return _wrong(action, code, _text(out), _text(err)), False


def _code(action: Action) -> int:
    if callable(action):
        try:
            action()
        except HybridbenchError as error:
            echo(f"hybridbench: {one_line(str(error))}", err=True)
            return int(error.exit_code)
        return 0
    with patch.object(sys, "argv", ["hybridbench", *action]):
        try:
            main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0
    return 0


def _wrong(action: Action, code: int, out: str, err: str) -> str:
    if code not in set(ExitCode) or code == ExitCode.INTERNAL:
        return f"exit code {code}: {err[-500:]}"
    machine = not callable(action) and "--format" in action and action[-1] != "console"
    if "\x1b" in err or ("\x1b" in out and not machine):
        return "an escape sequence reached the terminal"
    told = err if machine else out + err
    if any(line.lstrip().startswith("::") for line in told.splitlines()):
        return "a line begins like a command of a workflow"
    if code == ExitCode.USAGE:
        lines = err.splitlines()
        usage = [line for line in lines if line.startswith("hybridbench: ")]
        # One sentence for each fault of a file, and none twice.
        if not usage or len(set(usage)) != len(usage) or len(usage) > _SENTENCES_MAX:
            return f"exit code 2 with {len(usage)} sentences: {err[-500:]}"
    return ""


def _text(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode(stream.encoding, "replace")


@contextmanager
def _alarm(budget_s: float) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, budget_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
