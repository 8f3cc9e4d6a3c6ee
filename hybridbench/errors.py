"""Errors a person caused or can act on; each carries the exit code of the process that meets it.

Programming errors stay ordinary exceptions and end in exit code 1 with a traceback.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says to its caller; docs/verdicts.md explains each."""

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
    INTERRUPTED = 130
    TERMINATED = 143


class HybridbenchError(Exception):
    """Base of all errors that are told in one sentence, without a traceback."""

    exit_code: ExitCode = ExitCode.INTERNAL


class SameEngineError(HybridbenchError):
    """All versions of a comparison run the same engine: nothing differs that could be compared."""

    exit_code = ExitCode.CLEAN


class UsageError(HybridbenchError):
    """The command line asks for something that cannot be: say what would be right."""

    exit_code = ExitCode.USAGE


class ConfigError(HybridbenchError):
    """A file given by the user (profile, trace, checkpoint) is wrong: say file, key, line."""

    exit_code = ExitCode.USAGE


class RunDirectoryError(HybridbenchError):
    """A run directory cannot be read or written."""

    exit_code = ExitCode.USAGE


class WorkerFailedError(HybridbenchError):
    """The engine worker did not start, died, or stopped answering."""

    exit_code = ExitCode.CRASHED
