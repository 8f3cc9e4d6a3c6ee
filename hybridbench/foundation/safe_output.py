"""Words for whoever looks on: any terminal can take them, and nobody need be there.

Texts of others (names of columns, manifests, events) are data: a control character in them is shown
and not obeyed, and none of their lines is taken for a command by GitHub's log.
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

# C0 but tab and newline, delete, C1; marks that turn the direction of text; line separators.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
_PICTURES = 0x2400
_DELETE = 0x7F
_SPACE = 0x20
# GitHub takes a line of a log that begins so, or has ##[ in it, for a command.
_COMMAND = re.compile(r"^([^\S\n]*)::|##\[", re.MULTILINE)


class ReaderLeftError(BrokenPipeError):
    """Whoever read standard output has closed it, as ``| head`` does.

    It has no errno: on EPIPE typer would end the process with 1, the code of a bug of ours.
    """


def say(stream: TextIO, text: str) -> None:
    """Write ``text`` to ``stream`` at once, or nowhere if nobody reads that any more."""
    try:
        stream.write(no_commands(visible(text)))
        stream.flush()
    except OSError:
        give_up(stream)


def discard_dead_streams(*streams: TextIO) -> None:
    """Have nothing more go to those of ``streams`` whose terminal has hung up."""
    for stream in streams:
        try:
            os.write(stream.fileno(), b"")
        except OSError:
            give_up(stream)
        except ValueError:
            # Replaced by one without a descriptor, as tests do.
            continue


def emit(text: str) -> None:
    """Write ``text`` as it is: for documents whose format has an escape of its own.

    Raises:
        OSError: standard output takes no more.
    """
    with named_output():
        sys.stdout.write(text)
        sys.stdout.flush()


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Write lines for people; on standard error if somebody reads that.

    Raises:
        OSError: standard output takes no more.
    """
    end = "\n" if nl else ""
    if err:
        say(sys.stderr, text + end)
    else:
        emit(no_commands(visible(text)) + end)


def print_error(error: HybridbenchError) -> None:
    """What a user caused: a sentence for each fault; tracebacks are for our own bugs."""
    for sentence in error.sentences:
        echo(f"hybridbench: {one_line(sentence)}", err=True)


@contextlib.contextmanager
def named_output() -> Iterator[None]:
    """An OSError of what is written inside says that it is of standard output.

    Raises:
        ReaderLeftError: nobody reads it any more.
    """
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderLeftError from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


@contextlib.contextmanager
def output_after_verdict() -> Iterator[None]:
    """Inside, an answer is printed whose exit code must not depend on who reads it.

    That standard output takes no more is said on standard error; a reader who left needs no word.
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
    """``text`` with its control characters shown: escape is ``␛``; tabs and newlines stay."""
    return _CONTROL.sub(_picture, text)


def one_line(text: str) -> str:
    """The same in one line: a newline is shown as ``␊``."""
    return visible(text).replace("\n", "␊")


def no_commands(text: str) -> str:
    r"""``text`` with a backslash before what a workflow would obey: ``\::error::``."""
    return _COMMAND.sub(lambda m: "##\\[" if m[0] == "##[" else f"{m[1]}\\::", text)


def replace_closed_streams() -> None:
    """A stream that was closed before the start (``>&-``) takes words and loses them."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for the process's life
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def escape_unencodable() -> None:
    """Let both streams show what their encoding lacks as an escape, never as an error."""
    for stream in (sys.stdout, sys.stderr):
        # Streams of tests and embedders may be of another kind.
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")


def give_up(stream: TextIO) -> None:
    """What is written to ``stream`` from now on, and what its buffer holds, goes nowhere.

    Otherwise the interpreter would fail to flush it at the very end, and exit with a code of its
    own in place of ours.
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
