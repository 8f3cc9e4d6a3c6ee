from __future__ import annotations

import signal
import threading
from contextlib import nullcontext

import pytest

from hybridbench.foundation.errors import ExitCode
from hybridbench.runs.interrupts import Interrupts, SecondSignalError, handled_interrupts


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED),
        (signal.SIGTERM, ExitCode.TERMINATED),
        (signal.SIGHUP, ExitCode.TERMINATED),
        (signal.SIGQUIT, ExitCode.TERMINATED),
    ],
)
def test_the_first_signal_is_noted_and_the_second_raises(
    number: signal.Signals, code: ExitCode
) -> None:
    # Background jobs, as some CI services run them, start with some of these signals ignored.
    inherited = signal.signal(number, signal.SIG_DFL)
    try:
        with handled_interrupts() as interrupts:
            codes = [interrupts.exit_code]
            signal.raise_signal(number)
            codes.append(interrupts.exit_code)
            assert codes == [None, code]
            with pytest.raises(SecondSignalError):
                signal.raise_signal(signal.SIGINT)

        left = signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL
        assert signal.getsignal(number) == left
    finally:
        signal.signal(number, inherited)


def test_a_terminal_that_hangs_up_twice_is_one_wish() -> None:
    interrupts = Interrupts()

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):
        interrupts.on_signal(number, None)

    assert interrupts.first is signal.SIGTERM


def test_who_starts_a_run_with_nohup_has_it_outlive_the_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled_interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
        assert interrupts.first is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("numbers", "times", "is_second"),
    [
        ((signal.SIGTERM, signal.SIGTERM), (10.0, 10.1), False),
        ((signal.SIGTERM, signal.SIGTERM), (10.0, 13.0), True),
        ((signal.SIGTERM, signal.SIGINT), (10.0, 10.1), True),
        ((signal.SIGINT, signal.SIGTERM), (10.0, 10.1), True),
        ((signal.SIGINT, signal.SIGINT), (10.0, 10.1), True),
    ],
)
def test_a_parent_of_many_threads_dies_once_and_a_user_may_ask_twice_at_once(
    numbers: tuple[signal.Signals, ...], times: tuple[float, ...], is_second: bool
) -> None:
    clock = iter(times)
    interrupts = Interrupts(lambda: next(clock))
    interrupts.on_signal(numbers[0], None)

    with pytest.raises(SecondSignalError) if is_second else nullcontext():
        interrupts.on_signal(numbers[1], None)

    assert interrupts.first is numbers[0]


def test_sigusr1_asks_for_the_evidence_and_ends_nothing() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with handled_interrupts() as interrupts:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert interrupts.report_wanted
        assert interrupts.exit_code is None

    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_thread_that_gets_no_signals_can_still_run_a_soak() -> None:
    seen: list[Interrupts] = []

    def run() -> None:
        with handled_interrupts() as interrupts:
            seen.append(interrupts)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen[0].first is None
