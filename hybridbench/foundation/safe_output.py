"""Print text for people safely: on any terminal, and even without a reader.

Foreign text (names of columns, manifests, events) is data: control characters in it are displayed,
not obeyed, and GitHub's log does not treat any of its lines as a command.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import TextIO

from hybridbench.foundation.errors import HybridbenchError

# C0 except tab and newline, delete, C1; bidirectional marks; line separators.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
_PICTURES = 0x2400
_DELETE = 0x7F
_SPACE = 0x20
# GitHub treats a log line that begins with ::, or contains ##[, as a command.
_COMMAND = re.compile(r"^([^\S\n]*)::|##\[", re.MULTILINE)


class ReaderLeftError(BrokenPipeError):
    """The reader of standard output has closed it, as ``| head`` does.

    It has no errno, because on EPIPE typer exits with 1, which is our code for a bug.
    """


def say(stream: TextIO, text: str) -> None:
    """Write ``text`` to ``stream`` at once; discard it if the reader is gone."""
    try:
        stream.write(no_commands(visible(text)))
        stream.flush()
    except OSError:
        give_up(stream)


def discard_dead_streams(*streams: TextIO) -> None:
    """Discard further output to those of ``streams`` whose terminal has hung up."""
    for stream in streams:
        try:
            os.write(stream.fileno(), b"")
        except OSError:
            give_up(stream)
        except ValueError:
            # A replacement without a descriptor, as in tests.
            continue


def emit(text: str) -> None:
    """Write ``text`` unchanged, for documents whose format does its own escaping.

    Raises:
        OSError: standard output cannot be written.
    """
    with named_output():
        sys.stdout.write(text)
        sys.stdout.flush()


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Write lines for people; with ``err`` to standard error, if it still has a reader.

    Raises:
        OSError: standard output cannot be written.
    """
    end = "\n" if nl else ""
    if err:
        say(sys.stderr, text + end)
    else:
        emit(no_commands(visible(text)) + end)


def print_error(error: HybridbenchError) -> None:
    """Print a user error, one sentence per fault; tracebacks are only for our own bugs."""
    for sentence in error.sentences:
        echo(f"hybridbench: {one_line(sentence)}", err=True)


@contextlib.contextmanager
def named_output() -> Iterator[None]:
    """Make any OSError raised within the block name standard output.

    Raises:
        ReaderLeftError: the reader is gone.
    """
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderLeftError from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


@contextlib.contextmanager
def output_after_verdict() -> Iterator[None]:
    """Within the block, print an answer; its reader must not affect the exit code.

    Failures to write are reported on standard error; a reader that left is ignored.
    """
    try:
        yield
    except ReaderLeftError:
        give_up(sys.stdout)
    except OSError as error:
        give_up(sys.stdout)
        reason = error.strerror or "it is closed"
        echo(
            f"hybridbench: the answer cannot be written to standard output: {reason}; the exit "
            "code is the verdict's",
            err=True,
        )


def visible(text: str) -> str:
    """``text`` with visible control characters: escape becomes ``␛``; tabs and newlines stay."""
    return _CONTROL.sub(_picture, text)


def one_line(text: str) -> str:
    """``text`` in one line with visible control characters; a newline becomes ``␊``."""
    return visible(text).replace("\n", "␊")


def no_commands(text: str) -> str:
    r"""``text`` with a backslash before GitHub's workflow commands: ``\::error::``."""
    return _COMMAND.sub(lambda m: "##\\[" if m[0] == "##[" else f"{m[1]}\\::", text)


def replace_closed_streams() -> None:
    """Replace a stream that was closed before the start (``>&-``) by /dev/null."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for the process's life
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def escape_unencodable() -> None:
    """Make both streams escape characters that their encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        # Tests and embedding programs may use other kinds of streams.
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")


def give_up(stream: TextIO) -> None:
    """Discard the buffer of ``stream`` and all further output to it.

    Otherwise the interpreter would fail to flush it at exit, and replace our exit code.
    """
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < _SPACE:
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "␡"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
