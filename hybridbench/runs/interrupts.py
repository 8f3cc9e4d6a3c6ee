"""Ctrl-C, SIGTERM, SIGQUIT and terminal hangup: the first requests an orderly end, the second an
immediate one.

SIGUSR1 requests a report of the run so far, and the run continues.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.safe_output import discard_dead_streams

_HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Users who start a run with nohup want it to outlive the terminal.
_MAY_BE_IGNORED: Final = (signal.SIGHUP, signal.SIGQUIT)
# The kernel signals a parent's death once for each of the parent's threads that dies.
_ONE_DEATH_S: Final = 2.0


class SecondSignalError(BaseException):
    """The user interrupted twice: stop at once.  Not an Exception, so that nothing catches it."""


class Interrupts:
    """The interrupts so far.  The loop checks ``first``; a second signal raises.

    A SIGTERM right after another counts as the same one: a killed nightly run signals its soaks
    that way.  A hangup may also arrive twice, from the kernel and from the shell.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first_s = 0.0
        self.first: signal.Signals | None = None
        self.report_wanted = False

    @property
    def exit_code(self) -> ExitCode | None:
        """130 after SIGINT; 143 after SIGTERM, SIGHUP and SIGQUIT, which come from outside."""
        if self.first is None:
            return None
        return ExitCode.INTERRUPTED if self.first is signal.SIGINT else ExitCode.TERMINATED

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: record the first signal, raise SecondSignalError on the next."""
        if number == signal.SIGHUP:
            # Every write to a closed terminal fails, so discard such streams.
            discard_dead_streams(sys.stdout, sys.stderr)
            if self.first is not None:
                return
        now_s = self._clock()
        if self.first is None:
            self.first = signal.Signals(number)
            self._first_s = now_s
        elif not self.first == number == signal.SIGTERM or now_s - self._first_s > _ONE_DEATH_S:
            raise SecondSignalError

    def on_report_signal(self, number: int, frame: FrameType | None) -> None:
        """Handler of SIGUSR1: only set a flag, because the loop itself must write the files."""
        self.report_wanted = True


@contextmanager
def handled_interrupts() -> Iterator[Interrupts]:
    """Route signals to an ``Interrupts`` inside the block, and restore the handlers afterwards.

    Python delivers signals only to the main thread: in any other, no handler is installed.
    """
    interrupts = Interrupts()
    try:
        before = {
            number: signal.signal(number, interrupts.on_signal)
            for number in _HANDLED
            if number not in _MAY_BE_IGNORED or signal.getsignal(number) != signal.SIG_IGN
        }
        before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, interrupts.on_report_signal)
    except ValueError:
        before = {}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            # The run is still to be judged and written, and a shell may send a second hangup.
            hung_up = number == signal.SIGHUP and interrupts.first is signal.SIGHUP
            signal.signal(number, signal.SIG_IGN if hung_up else handler)
