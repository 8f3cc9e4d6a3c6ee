"""Errors that a user caused or can act on, each with the exit code of the process.

Programming errors remain ordinary exceptions, and end in exit code 1 with a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from enum import IntEnum, StrEnum
from typing import Final, Self

# If at most this many names contain an unknown one, these are suggested instead of all names.
_NAMED_MAX: Final = 5


class ExitCode(IntEnum):
    """Exit codes of the process; verdicts.md explains each."""

    CLEAN = 0
    INTERNAL = 1
    USAGE = 2
    LEAK = 10
    DEGRADED = 11
    REGRESSION = 12
    INCONCLUSIVE = 13
    CRASHED = 14
    INVARIANT = 15
    INVALID = 16
    CORRUPT = 17
    INTERRUPTED = 130
    TERMINATED = 143


class ErrorCode(StrEnum):
    """Kind of an error, for programs and tests; the sentence is for people."""

    INTERNAL = "internal"
    SAME_ENGINE = "same-engine"
    USAGE = "usage"
    # Words on the command line, and the objects that they name.
    UNKNOWN_COMMAND = "unknown-command"
    UNKNOWN_OPTION = "unknown-option"
    UNKNOWN_CHOICE = "unknown-choice"
    UNKNOWN_NAME = "unknown-name"
    MISSING_ARGUMENT = "missing-argument"
    EXTRA_ARGUMENT = "extra-argument"
    BAD_VALUE = "bad-value"
    OPTION_CONFLICT = "option-conflict"  # options that exclude or need each other
    CONFIG = "config"
    RUN_DIRECTORY = "run-directory"
    WORKER_FAILED = "worker-failed"
    # Directories and files.
    NOT_FOUND = "not-found"
    NOT_READABLE = "not-readable"
    NOT_WRITABLE = "not-writable"
    NOT_EMPTY = "not-empty"
    DAMAGED = "damaged"
    MISMATCH = "mismatch"  # results or versions that do not belong together


class HybridbenchError(Exception):
    """Base of all errors that are printed as one sentence, without a traceback."""

    exit_code: ExitCode = ExitCode.INTERNAL
    default_code: ErrorCode = ErrorCode.INTERNAL

    def __init__(self, *sentence: object, code: ErrorCode | None = None) -> None:
        super().__init__(*sentence)
        self.code = code or self.default_code
        self.options: tuple[str, ...] = ()  # invalid options, or an invalid combination

    def reworded(self, sentence: str) -> Self:
        """Return the same error with another sentence."""
        error = type(self)(sentence, code=self.code)
        error.options = self.options
        return error

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences to print, one for each fault."""
        return (str(self),)


class SameEngineError(HybridbenchError):
    """All versions of a comparison run the same engine, so there is nothing to compare."""

    exit_code = ExitCode.CLEAN
    default_code = ErrorCode.SAME_ENGINE


class UsageError(HybridbenchError):
    """The command line is invalid; the sentence says what would be valid."""

    exit_code = ExitCode.USAGE
    default_code = ErrorCode.USAGE

    def __init__(
        self,
        sentence: str,
        *,
        code: ErrorCode | None = None,
        option: str = "",
        also: tuple[str, ...] = (),
    ) -> None:
        """
        Args:
            sentence: what is wrong; for an ``option``, the part after its name.
            code: kind of the error; default: OPTION_CONFLICT with ``also``, else BAD_VALUE for an
                ``option``.
            option: the invalid option, with its dashes.
            also: further options that are invalid, or conflict with it.
        """
        space = " " if option and not sentence.startswith(":") else ""
        if code is None and (option or also):
            code = ErrorCode.OPTION_CONFLICT if also else ErrorCode.BAD_VALUE
        super().__init__(f"{option}{space}{sentence}", code=code)
        self.options = (option, *also) if option else also


class ConfigError(HybridbenchError):
    """A user's file (profile, trace, checkpoint) is invalid; the sentence names file, key, line."""

    exit_code = ExitCode.USAGE
    default_code = ErrorCode.CONFIG


class RunDirectoryError(HybridbenchError):
    """A run directory cannot be read or written."""

    exit_code = ExitCode.USAGE
    default_code = ErrorCode.RUN_DIRECTORY


class WorkerFailedError(HybridbenchError):
    """The engine worker did not start, died, or stopped answering."""

    exit_code = ExitCode.CRASHED
    default_code = ErrorCode.WORKER_FAILED


def nearest(name: str, choices: Collection[str], otherwise: str = "") -> str:
    """Return half a sentence that suggests a choice that is nearly ``name``, those that contain it,
    or the closest; without any, ``otherwise``, or a list of all ``choices``.
    """
    parts = [choice for choice in choices if name and name.lower() in choice.lower()]
    few = parts if len(parts) <= _NAMED_MAX else []
    meant = (
        difflib.get_close_matches(name, choices, n=1, cutoff=0.8)
        or few
        or difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    )
    if meant:
        return f"did you mean {' or '.join(meant)}?"
    return otherwise or f"choose one of {', '.join(choices)}"


def full_stop(sentence: str) -> str:
    """End ``sentence`` with one punctuation mark; keep a question mark."""
    return sentence if sentence.endswith("?") else f"{sentence}."
