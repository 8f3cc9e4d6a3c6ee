"""Errors a person caused or can act on; each carries the exit code of the process that meets it.

Programming errors stay ordinary exceptions and end in exit code 1 with a traceback.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Self


class ExitCode(IntEnum):
    """What the process says to its caller; verdicts.md explains each."""

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
    """What kind of error it is, for programs and tests; the sentence is for people."""

    INTERNAL = "internal"
    SAME_ENGINE = "same-engine"
    USAGE = "usage"
    # Of words on the command line, and what they name.
    UNKNOWN_COMMAND = "unknown-command"
    UNKNOWN_OPTION = "unknown-option"
    UNKNOWN_CHOICE = "unknown-choice"
    UNKNOWN_NAME = "unknown-name"
    MISSING_ARGUMENT = "missing-argument"
    EXTRA_ARGUMENT = "extra-argument"
    BAD_VALUE = "bad-value"
    OPTION_CONFLICT = "option-conflict"
    NEEDS_OPTION = "needs-option"
    CONFIG = "config"
    RUN_DIRECTORY = "run-directory"
    WORKER_FAILED = "worker-failed"
    # Of directories and files.
    NOT_FOUND = "not-found"
    NOT_READABLE = "not-readable"
    NOT_WRITABLE = "not-writable"
    NOT_EMPTY = "not-empty"
    DAMAGED = "damaged"
    OTHER_VERSION = "other-version"
    MISMATCH = "mismatch"  # results or versions that do not belong together
    NOTHING_TO_RESUME = "nothing-to-resume"
    # Of workers.
    WORKER_NOT_STARTED = "worker-not-started"
    OTHER_WIRE = "other-wire"


class HybridbenchError(Exception):
    """Base of all errors that are told in one sentence, without a traceback."""

    exit_code: ExitCode = ExitCode.INTERNAL
    default_code: ErrorCode = ErrorCode.INTERNAL

    def __init__(self, *sentence: object, code: ErrorCode | None = None) -> None:
        super().__init__(*sentence)
        self.code = code or self.default_code
        self.options: tuple[str, ...] = ()  # those that are wrong, or wrong together

    def reworded(self, sentence: str) -> Self:
        """The same error in another sentence."""
        error = type(self)(sentence, code=self.code)
        error.options = self.options
        return error

    @property
    def sentences(self) -> tuple[str, ...]:
        """What to print, one for each thing that is wrong."""
        return (str(self),)


class SameEngineError(HybridbenchError):
    """All versions of a comparison run the same engine: nothing differs that could be compared."""

    exit_code = ExitCode.CLEAN
    default_code = ErrorCode.SAME_ENGINE


class UsageError(HybridbenchError):
    """The command line asks for something that cannot be: say what would be right."""

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
            sentence: what is wrong; of an ``option`` what follows its name.
            code: what kind of error it is; of an ``option`` BAD_VALUE unless given.
            option: the option that is wrong, with its dashes.
            also: further options that are wrong, or wrong together with it.
        """
        space = " " if option and not sentence.startswith(":") else ""
        code = code or (ErrorCode.BAD_VALUE if option else None)
        super().__init__(f"{option}{space}{sentence}", code=code)
        self.options = (option, *also) if option else also


class ConfigError(HybridbenchError):
    """A file given by the user (profile, trace, checkpoint) is wrong: say file, key, line."""

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
