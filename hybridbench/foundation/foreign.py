"""Read foreign data within limits: any file is read in finite time and bounded memory.

Everything that the bench reads, but did not write in this process, passes through here: regular
files and unpacked gzip streams of limited size, JSON of limited depth, and 64-bit numbers.  Each
error is a clause that follows the name of the file.
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

# Limits for a descriptive document, and for the records of a run.
DOCUMENT_BYTES_MAX: Final = 64 * MIB
RECORDS_BYTES_MAX: Final = GIB
LINE_BYTES_MAX: Final = MIB
# Wall-clock seconds up to the year 9999, and run time up to about 300 years.
WALL_S_MAX: Final = 253_402_300_799.0
TIME_S_MAX: Final = 1e10

DEPTH_MAX: Final = 100
LFS_POINTER: Final = "version https://git-lfs"
"""The beginning of a file whose content Git LFS has not fetched."""
# The range of integers in msgspec, NumPy, torch and the wire protocol.
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
SEED_MAX: Final = 2**62
_INT_DIGITS: Final = 20
_CHUNK: Final = MIB
# An escaped backslash, a surrogate pair, and a lone surrogate.
_SURROGATES: Final = re.compile(
    r"\\\\|\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
# A pipe without a writer must not block a command forever.
_PATIENCE_S: Final = 60.0
_KINDS: Final = (
    (stat.S_ISFIFO, "is a named pipe"),
    (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
)


class ForeignDataError(ValueError):
    """Data beyond a limit or in a wrong format; the message does not name the path."""


class TooLargeError(ForeignDataError):
    """A file or stream with more bytes than are read."""


def read_bytes(path: Path, most: int) -> bytes:
    """Read the whole regular file at ``path``.

    Raises:
        ForeignDataError: it is not a regular file, or has more than ``most`` bytes.
        OSError: it cannot be opened or read.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise _too_large(most)
        return read_stream(file, most)


def read_text(path: Path, most: int) -> str:
    """Read the whole regular file at ``path`` as text.

    Raises:
        ForeignDataError: as from ``read_bytes``, or it is not UTF-8.
        OSError: it cannot be opened or read.
    """
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ForeignDataError(f"is not text in UTF-8 (byte {error.start})") from error


def read_json(path: Path) -> object:
    """Read the JSON document in the regular file at ``path``.

    Raises:
        ForeignDataError: as from ``read_text`` and ``json_value``.
        OSError: it cannot be opened or read.
    """
    return json_value(read_text(path, DOCUMENT_BYTES_MAX))


def open_regular(path: Path) -> BinaryIO:
    """Open ``path`` for reading; the caller closes it.

    Raises:
        ForeignDataError: it is not a regular file.
        OSError: it cannot be opened.
    """
    if "\0" in str(path):
        raise ForeignDataError("is not a file name")
    # Non-blocking: opening a named pipe would block until it has a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_special(os.fstat(handle).st_mode)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def is_http_address(url: str) -> bool:
    """Whether ``url`` is an HTTP address to which requests can be sent."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_file(path: Path) -> bool:
    """Whether ``path`` is a file; False for invalid paths, such as from names in a file."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_piped(path: Path, most: int) -> bytes:
    """Read a regular file, or a pipe as in ``judge <(zcat FILE)``, to its end.

    Raises:
        ForeignDataError: it is a device, has more than ``most`` bytes, or is a pipe from which
            nothing came for a minute.
        OSError: it cannot be opened or read.
    """
    mode = path.stat().st_mode
    if not stat.S_ISFIFO(mode):
        return read_bytes(path, most)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb", buffering=0) as pipe:
        return _from_pipe(pipe, most)


def read_stream(stream: BinaryIO, most: int) -> bytes:
    """Read ``stream`` to its end.

    Raises:
        ForeignDataError: it has more than ``most`` bytes.
    """
    data = stream.read(most + 1)
    if len(data) > most:
        raise _too_large(most)
    return data


def unpacked(data: bytes, most: int) -> bytes:
    """Unpack all members of the gzip stream ``data``.

    Raises:
        ForeignDataError: it is damaged, or unpacks to more than ``most`` bytes.
        EOFError: it is truncated.
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
                    raise TooLargeError(f"unpacks to more than {_size(most)}")
        except zlib.error as error:
            raise ForeignDataError(f"is a damaged gzip file ({error})") from error
        # Zeros may follow the last member as padding.
        rest = unpacker.unused_data.lstrip(b"\0")
    return out.getvalue()


def longest_line(data: bytes) -> tuple[int, int]:
    """Return the number (from 1) and the length of the longest line."""
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
    """Parse a JSON document.

    An integer beyond 64 bits becomes a float.  A lone surrogate, which no encoding can write,
    becomes U+FFFD.

    Raises:
        ForeignDataError: it is not JSON, or nested more than ``DEPTH_MAX`` deep.
    """
    if text.startswith(LFS_POINTER):
        raise ForeignDataError("is a Git LFS pointer; fetch the file with git lfs pull")
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
    # Most lines have too few brackets to be deep.
    if text.count("[") + text.count("{") > DEPTH_MAX:
        check_depth(value)
    return value


def _mended(escape: re.Match[str]) -> str:
    return "\\ufffd" if len(escape.group()) == len("\\ud800") else escape.group()


def check_depth(value: object) -> None:
    """Refuse a value that is too deep for recursive code.

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
    """Check depth and the range of integers of a value that msgspec decoded untyped.

    Raises:
        ForeignDataError: it is nested too deep, or has an integer beyond 64 bits.
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
    # Python itself refuses more than 4300 digits; later code accepts at most 64 bits.
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


def _too_large(most: int) -> TooLargeError:
    return TooLargeError(f"is larger than {_size(most)}")


def _too_deep() -> ForeignDataError:
    return ForeignDataError(f"is nested more than {DEPTH_MAX} levels deep")


def _size(count: int) -> str:
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= factor:
            return f"{count / factor:g} {unit}"
    return f"{count} bytes"
