"""The file that is read, as every reader has it: what was asked of it, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hybridbench.errors import ConfigError, ErrorCode, UsageError
from hybridbench.units import format_duration

_BAD_SHARE = 0.01


@dataclass(frozen=True)
class Source:
    """The file that is read: its name, what the caller said about it, and what is noted of it.

    ``time_column`` is ``NAME`` or ``NAME:UNIT``; ``interval_s`` is for a file that has no times.
    """

    name: str
    time_column: str | None = None
    interval_s: float | None = None
    notes: list[str] = field(default_factory=list)

    def wrong(self, what: str, line: int = 0, code: ErrorCode | None = None) -> ConfigError:
        """The error that names the file, and the line where there is one."""
        place = f"{self.name}:{line}" if line else self.name
        return ConfigError(f"{place}: {what}", code=code)

    def leave_out(
        self, bad: Sequence[int], lines: Sequence[int], why: str, refusal: str, few: int = 3
    ) -> None:
        """Note that the lines ``bad`` of ``lines`` are not read: one in 100 at most, or ``few``.

        Raises:
            ConfigError: they are more than a few, so that this is another kind of file.
        """
        if bad and bad[0] == lines[-1]:
            self.notes.append(f"the last line ({bad[0]}) is cut short: left out")
        elif len(bad) > max(few, _BAD_SHARE * len(lines)) or len(bad) == len(lines) > 0:
            raise self.wrong(refusal, bad[0])
        elif bad:
            self.notes.append(f"{len(bad)} lines left out, {why}, first {bad[0]}")

    def check_has_times(self) -> None:
        """Refuse an interval between samples, which would be another time.

        Raises:
            UsageError: one was given.
        """
        if self.interval_s is not None:
            raise UsageError(
                f"{format_duration(self.interval_s)}: {self.name} already has times; leave the "
                "option out.",
                code=ErrorCode.OPTION_CONFLICT,
                option="--interval",
            )
