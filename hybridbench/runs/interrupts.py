"""Ctrl-C, SIGTERM, SIGQUIT, a terminal that closes: the first asks for an orderly end, the second
for an immediate one.

SIGUSR1 asks for a report of the run so far, and the run goes on.
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
# Who starts a run with nohup wants it to outlive the terminal.
_MAY_BE_IGNORED: Final = (signal.SIGHUP, signal.SIGQUIT)
# The kernel tells a process of its parent's death once for each of the parent's threads that dies.
_ONE_DEATH_S: Final = 2.0


class SecondSignalError(BaseException):
    """The user asked twice: stop at once.  No Exception, so that nothing swallows it."""


class Interrupts:
    """What has been asked for so far.  The loop looks at ``first``; a second signal raises.

    A SIGTERM right after another is the same wish: so a night that is killed tells its soaks.  And
    whoever hangs up is gone: the kernel says so, and the shell says it once more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first_s = 0.0
        self.first: signal.Signals | None = None
        self.report_wanted = False

    @property
    def exit_code(self) -> ExitCode | None:
        """130 after SIGINT, 143 after SIGTERM, SIGHUP and SIGQUIT: who ends it from outside."""
        if self.first is None:
            return None
        return ExitCode.INTERRUPTED if self.first is signal.SIGINT else ExitCode.TERMINATED

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """The handler: notes the first signal, raises SecondSignalError on the next."""
        del frame
        if number == signal.SIGHUP:
            # Nothing that is written to a terminal that is gone arrives, and all of it fails.
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
        """The handler of SIGUSR1: only notes it, as writing files is the loop's own business."""
        del number, frame
        self.report_wanted = True


@contextmanager
def handled_interrupts() -> Iterator[Interrupts]:
    """Signals go to an ``Interrupts`` inside the block and where they went before after it.

    In a thread other than the main one Python delivers no signals: nothing is installed then.
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
            # The answer is still to be judged and written, and a shell may hang up twice.
            hung_up = number == signal.SIGHUP and interrupts.first is signal.SIGHUP
            signal.signal(number, signal.SIG_IGN if hung_up else handler)
