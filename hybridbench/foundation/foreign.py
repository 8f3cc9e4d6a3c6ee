"""Foreign data within limits: whatever lies in a file, reading it ends, and in bounded memory.

Everything that the bench reads and did not write in this process comes through here: regular files
of at most so many bytes, gzip streams of at most so many bytes unpacked, JSON of bounded depth and
numbers of 64 bits.  Each refusal is half a sentence that follows the name of the file.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import select
import stat
import zlib
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import urlsplit

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30

# A document that describes something, and the records of a night that it rests on.
DOCUMENT_BYTES_MAX: Final = 64 * MIB
RECORDS_BYTES_MAX: Final = GIB
LINE_BYTES_MAX: Final = MIB
# Seconds since 1970 up to the year 9999, and seconds of a run up to about 300 years.
WALL_S_MAX: Final = 253_402_300_799.0
TIME_S_MAX: Final = 1e10

DEPTH_MAX: Final = 100
# What is an int to everything behind us: msgspec, NumPy, torch and the wire.
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
SEED_MAX: Final = 2**62
_INT_DIGITS: Final = 20
_CHUNK: Final = MIB
# An escaped backslash, a surrogate pair, and half of one.
_SURROGATES: Final = re.compile(
    r"\\\\|\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
# A pipe that nobody writes to must not hold a command for ever.
_PATIENCE_S: Final = 60.0
_KINDS: Final = (
    (stat.S_ISFIFO, "is a named pipe"),
    (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
)


class ForeignDataError(ValueError):
    """What was read is beyond a limit or is not what it should be; says which, without the path."""


def read_bytes(path: Path, most: int) -> bytes:
    """The whole regular file at ``path``.

    Raises:
        ForeignDataError: it is no regular file, or holds more than ``most`` bytes.
        OSError: it cannot be opened or read.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise _too_large(most)
        return read_stream(file, most)


def read_text(path: Path, most: int) -> str:
    """The same as text.

    Raises:
        ForeignDataError: as ``read_bytes``, or it is not UTF-8.
        OSError: it cannot be opened or read.
    """
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ForeignDataError(f"is not text in UTF-8 (byte {error.start})") from error


def read_json(path: Path) -> object:
    """The JSON document in the regular file at ``path``.

    Raises:
        ForeignDataError: as ``read_text`` and ``json_value``.
        OSError: it cannot be opened or read.
    """
    return json_value(read_text(path, DOCUMENT_BYTES_MAX))


def open_regular(path: Path) -> BinaryIO:
    """``path`` opened for reading; the caller closes it.

    Raises:
        ForeignDataError: it is no regular file.
        OSError: it cannot be opened.
    """
    if "\0" in str(path):
        raise ForeignDataError("is not a file name")
    # Without waiting: to open a named pipe would block until somebody writes to it.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_special(os.fstat(handle).st_mode)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def is_http_address(url: str) -> bool:
    """Whether ``url`` is an address that a request can be sent to."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_file(path: Path) -> bool:
    """Whether a file lies there; False also for what can be no path, as names in a file may be."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_piped(path: Path, most: int) -> bytes:
    """A regular file, or all that comes through a pipe: ``judge <(zcat FILE)`` has no file.

    Raises:
        ForeignDataError: it is a device or a directory, holds more than ``most`` bytes, or nothing
            came through the pipe for a minute.
        OSError: it cannot be opened or read.
    """
    mode = path.stat().st_mode
    if not stat.S_ISFIFO(mode):
        return read_bytes(path, most)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb", buffering=0) as pipe:
        return _from_pipe(pipe, most)


def read_stream(stream: BinaryIO, most: int) -> bytes:
    """Everything that ``stream`` gives.

    Raises:
        ForeignDataError: that is more than ``most`` bytes.
    """
    data = stream.read(most + 1)
    if len(data) > most:
        raise _too_large(most)
    return data


def unpacked(data: bytes, most: int) -> bytes:
    """The members of the gzip stream ``data``, one after the other.

    Raises:
        ForeignDataError: it is damaged, or unpacks to more than ``most`` bytes.
        EOFError: it is cut short.
    """
    out = io.BytesIO()
    rest = data
    while rest:
        unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            while not unpacker.eof:
                piece = unpacker.decompress(rest, _CHUNK)
                rest = unpacker.unconsumed_tail
                if not piece and not rest and not unpacker.eof:
                    raise EOFError
                out.write(piece)
                if out.tell() > most:
                    raise ForeignDataError(f"unpacks to more than {_size(most)}")
        except zlib.error as error:
            raise ForeignDataError(f"is a damaged gzip file ({error})") from error
        # Zeros may pad the last member.
        rest = unpacker.unused_data.lstrip(b"\0")
    return out.getvalue()


def longest_line(data: bytes) -> tuple[int, int]:
    """Number (from 1) and length of the longest line."""
    longest = number = at = length = 0
    while at < len(data):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        number += 1
        if end - at > length:
            longest, length = number, end - at
        at = end + 1
    return longest, length


def json_value(text: str) -> object:
    """The value of a JSON document.

    A whole number beyond 64 bits comes as a float.  Half a surrogate pair, which no encoding can
    write again, comes as U+FFFD.

    Raises:
        ForeignDataError: it is no JSON, or is nested more than ``DEPTH_MAX`` deep.
    """
    if "\\ud" in text or "\\uD" in text:
        text = _SURROGATES.sub(_mended, text)
    try:
        value: object = json.loads(text, parse_int=_integer)
    except RecursionError as error:
        raise _too_deep() from error
    except ForeignDataError:
        raise
    except ValueError as error:
        raise ForeignDataError(f"is not JSON: {error}") from error
    # Most lines are too short to be deep.
    if text.count("[") + text.count("{") > DEPTH_MAX:
        check_depth(value)
    return value


def _mended(escape: re.Match[str]) -> str:
    return "\\ufffd" if len(escape.group()) == len("\\ud800") else escape.group()


def check_depth(value: object) -> None:
    """Refuse what whoever walks ``value`` by recursion could not take.

    Raises:
        ForeignDataError: it is nested more than ``DEPTH_MAX`` deep.
    """
    level = [value]
    for _ in range(DEPTH_MAX):
        below: list[object] = []
        for here in level:
            if isinstance(here, dict):
                below.extend(v for v in here.values() if isinstance(v, dict | list))
            elif isinstance(here, list):
                below.extend(v for v in here if isinstance(v, dict | list))
        if not below:
            return
        level = below
    raise _too_deep()


def check_plain(value: object) -> None:
    """``check_depth``, and all whole numbers have 64 bits: for what msgspec decoded untyped.

    Raises:
        ForeignDataError: it is nested too deep, or has such a number.
    """
    check_depth(value)
    level = [value]
    while level:
        here = level.pop()
        if isinstance(here, dict):
            level.extend(here.values())
        elif isinstance(here, list):
            level.extend(here)
        elif isinstance(here, int) and not INT_MIN <= here <= INT_MAX:
            raise ForeignDataError("has a whole number beyond 64 bits")


def _refuse_special(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    for is_kind, said in _KINDS:
        if is_kind(mode):
            raise ForeignDataError(f"{said}, not a regular file")


def _integer(digits: str) -> int | float:
    # Python itself refuses more than 4300 digits, and everything behind us more than 64 bits.
    if len(digits) <= _INT_DIGITS and INT_MIN <= (value := int(digits)) <= INT_MAX:
        return value
    return float(digits)


def _from_pipe(pipe: BinaryIO, most: int) -> bytes:
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN | select.POLLHUP)
    out = bytearray()
    while True:
        if not waiting.poll(_PATIENCE_S * 1000.0):
            raise ForeignDataError(f"is a pipe through which nothing came for {_PATIENCE_S:g} s")
        piece = pipe.read(_CHUNK)
        if not piece:
            return bytes(out)
        out += piece
        if len(out) > most:
            raise _too_large(most)


def _too_large(most: int) -> ForeignDataError:
    return ForeignDataError(f"is larger than {_size(most)}")


def _too_deep() -> ForeignDataError:
    return ForeignDataError(f"is nested more than {DEPTH_MAX} levels deep")


def _size(count: int) -> str:
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= factor:
            return f"{count / factor:g} {unit}"
    return f"{count} bytes"
