"""``--threshold``: read and refused before anything else happens."""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.errors import ErrorCode, UsageError
from hybridbench.thresholds import Stat, parse_thresholds


def given_thresholds(texts: Sequence[str], *, of_comparison: bool = False) -> tuple[str, ...]:
    """The thresholds of a command line as they are stored, each once.

    Args:
        of_comparison: whether two versions are there for a ratio.

    Raises:
        UsageError: one is none, names what is not measured, or lacks its unit.
    """
    try:
        parsed = parse_thresholds(texts)
    except ValueError as error:
        message = f"--threshold {error}"
        raise UsageError(
            message if message.endswith("?") else f"{message}.", code=ErrorCode.BAD_VALUE
        ) from error
    for threshold in parsed:
        if threshold.stat is Stat.RATIO and not of_comparison:
            raise UsageError(
                f"--threshold '{threshold.text}': a ratio compares two versions; give it to "
                "hybridbench compare.",
                code=ErrorCode.BAD_VALUE,
            )
    return tuple(threshold.text for threshold in parsed)
