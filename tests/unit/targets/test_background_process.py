"""A background process: its output, its time-out, its end, and programs that cannot start."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path

import pytest

from hybridbench.targets import background_process
from hybridbench.targets.background_process import ONE_THREAD, BackgroundProcess

ENDLESS = [sys.executable, "-c", "import signal; signal.pause()"]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_what_it_writes_goes_where_it_should_and_its_last_words_are_kept(tmp_path: Path) -> None:
    code = "import sys; print('out'); [print(f'line {i}', file=sys.stderr) for i in range(9)]"
    words = io.StringIO()
    with (tmp_path / "out").open("ab") as output:
        process = BackgroundProcess(python(code), output=output, keep_errors=True)
        ended = process.run(60.0, words)

    assert (ended.exit_code, ended.timed_out) == (0, False)
    assert ended.last_words == "line 6 | line 7 | line 8"
    assert words.getvalue().splitlines() == [f"line {i}" for i in range(9)]
    assert (tmp_path / "out").read_text() == "out\n"


def test_its_settings_are_set_on_top_of_the_callers(tmp_path: Path) -> None:
    with (tmp_path / "out").open("ab") as output:
        code = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['PYTHONSAFEPATH'])"
        process = BackgroundProcess(python(code), settings=ONE_THREAD, output=output)
        process.close(60.0)

    assert process.exit_code == 0
    assert (tmp_path / "out").read_text() == "1 1\n"


def test_one_that_takes_too_long_is_asked_to_end_and_then_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"

    asked = BackgroundProcess(ENDLESS, keep_errors=True).run(0.1)
    monkeypatch.setattr(background_process, "_LAST_WORDS_S", 0.1)
    killed = BackgroundProcess(python(deaf), keep_errors=True).run(1.0)

    assert (asked.timed_out, asked.exit_code) == (True, -signal.SIGTERM)
    assert (killed.timed_out, killed.exit_code) == (True, -signal.SIGKILL)


def test_closing_ends_it_at_once_or_when_its_time_is_over() -> None:
    with BackgroundProcess(ENDLESS) as at_once:
        assert at_once.exit_code is None
    late = BackgroundProcess(ENDLESS)
    late.close(0.1)

    assert at_once.exit_code == late.exit_code == -signal.SIGKILL


def test_a_signal_is_passed_on_and_a_terminals_does_not_reach_it() -> None:
    process = BackgroundProcess(python("import signal; signal.sigwait([signal.SIGTERM])"))
    try:
        assert process.exit_code is None
        process.send_signal(signal.SIGTERM)
        process.close(60.0)
    finally:
        process.close()

    assert process.exit_code in {0, -signal.SIGTERM}


def test_a_descriptor_is_inherited() -> None:
    read_end, write_end = os.pipe()
    process = BackgroundProcess(
        python(f"import os; os.write({write_end}, b'here')"), pass_fds=(write_end,)
    )
    os.close(write_end)
    process.close(60.0)

    with os.fdopen(read_end, "rb") as file:
        assert file.read() == b"here"


def test_what_the_system_cannot_start_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_process, "own_command", lambda *_: ["/no/such/program"])

    with pytest.raises(FileNotFoundError):
        BackgroundProcess(ENDLESS)
