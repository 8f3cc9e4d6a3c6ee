"""Foreign text on a terminal and in a log: it is shown, but its control codes are not obeyed."""

from __future__ import annotations

import contextlib
import errno
import io
import subprocess
import sys

import pytest

from hybridbench.cli.app import main
from hybridbench.foundation.safe_output import (
    echo,
    no_commands,
    one_line,
    output_after_verdict,
    replace_closed_streams,
    visible,
)
from hybridbench.foundation.terminal import Terminal


def test_control_characters_are_shown_and_tabs_and_newlines_stay() -> None:
    assert visible("a\x1b[31mb\tc\nd\x07\x7f") == "a␛[31mb\tc\nd␇␡"
    assert visible("x\x9b31m y\u202ez") == "x\\x9b31m y\\u202ez"


def test_one_line_stays_one_line() -> None:
    assert one_line("rss\n::error::owned\r\u2028x") == "rss␊::error::owned␍\\u2028x"


def test_a_line_that_github_would_obey_gets_a_backslash() -> None:
    told = no_commands("fine\n  ::error file=x::owned\na ::not:: b ##[command]rm")

    assert told == "fine\n  \\::error file=x::owned\na ::not:: b ##\\[command]rm"


def test_the_console_shows_sequences_and_folds_no_command_to_the_start_of_a_line() -> None:
    out = io.StringIO()

    Terminal(file=out, width=20).print("x" * 19 + " ::error::owned \x1b[2J", markup=False)

    lines = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert "␛[2J" in out.getvalue()
    assert not any(line.lstrip().startswith("::") for line in lines)


def test_colours_of_the_console_itself_stay() -> None:
    out = io.StringIO()

    Terminal(file=out, force_terminal=True, color_system="standard").print("[red]x[/red]")

    assert "\x1b[31mx" in out.getvalue()


def test_echo_writes_what_the_stream_has_no_character_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    echo("né")

    assert capsys.readouterr().out == "né\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_command_prints_in_every_encoding(encoding: str) -> None:
    script = "import sys; from hybridbench.cli.app import main; sys.argv[1:] = %r; main()"
    words = ["list", "runs", "--store", "/nowhere/né\udcff→"]

    done = subprocess.run(
        [sys.executable, "-c", script % words],
        env={"PYTHONIOENCODING": encoding, "PATH": ""},
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"no results directory" in done.stderr


@pytest.mark.parametrize("words", [["profiles", "list"], ["explain", "session-close-mamba"]])
def test_a_standard_output_that_takes_no_more_is_one_sentence(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", FullStream())
    monkeypatch.setattr(sys, "argv", ["hybridbench", *words])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == "hybridbench: standard output: No space left on device\n"


def test_an_answer_that_nobody_can_read_keeps_its_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", FullStream())

    with output_after_verdict():
        echo("LEAK")

    assert "the exit code is the verdict's" in capsys.readouterr().err


class FullStream(io.StringIO):
    """A stream on which every write fails."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_that_was_closed_before_the_start_takes_words_and_loses_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, name, None)

    replace_closed_streams()

    with contextlib.closing(getattr(sys, name)) as stream:
        assert stream.write("lost") == 4
