"""The wire between soak loop and worker: a Unix socket pair that carries frames of messages.

Each side first sends eight bytes, a magic word and the protocol version, so that two releases with
entirely different messages can still detect the mismatch.  Then come frames: a four-byte length
(little endian) and a msgpack array of messages.  A frame carries all messages that its sender had
ready, because waking the other side costs more than decoding.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from hybridbench.foundation.errors import ConfigError, WorkerFailedError
from hybridbench.records.messages import FromWorker, ToWorker

PROTOCOL_VERSION = 1

_MAGIC = b"HYBW"
_PREAMBLE = struct.Struct("<4sI")
_LENGTH = struct.Struct("<I")
_FRAME_BYTES_MAX = 64 * 2**20
_READ_BYTES = 1 << 18

Received = TypeVar("Received")


class WireClosedError(Exception):
    """The other side is gone: its process ended, or it closed the socket."""


class FrameReader(Generic[Received]):
    """Turns bytes into messages; keeps incomplete ones.

    Raises:
        WorkerFailedError: from ``feed``, if the other side uses another version or does not
            speak this protocol.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[list[Received]], peer: str) -> None:
        self._decoder = decoder
        self._peer = peer
        self._pending = bytearray()
        self._greeted = False

    def feed(self, data: bytes) -> list[Received]:
        """Add ``data``; return the messages that are now complete, oldest first."""
        pending = self._pending
        pending += data
        if not self._greeted and not self._greet():
            return []
        messages: list[Received] = []
        start = 0
        while len(pending) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(pending, start)
            if length > _FRAME_BYTES_MAX:
                raise WorkerFailedError(f"the {self._peer} sent a frame of {length} bytes.")
            end = start + _LENGTH.size + length
            if len(pending) < end:
                break
            messages += self._decode(bytes(pending[start + _LENGTH.size : end]))
            start = end
        del pending[:start]
        return messages

    def _greet(self) -> bool:
        if len(self._pending) < _PREAMBLE.size:
            return False
        magic, version = _PREAMBLE.unpack_from(self._pending)
        if magic != _MAGIC:
            raise WorkerFailedError(
                f"the {self._peer} does not speak hybridbench's wire protocol.",
            )
        if version != PROTOCOL_VERSION:
            raise WorkerFailedError(
                f"the {self._peer} speaks wire version {version} and this side version "
                f"{PROTOCOL_VERSION}: use both from one hybridbench release.",
            )
        del self._pending[: _PREAMBLE.size]
        self._greeted = True
        return True

    def _decode(self, frame: bytes) -> list[Received]:
        try:
            return self._decoder.decode(frame)
        except msgspec.MsgspecError as error:
            raise WorkerFailedError(
                f"the {self._peer} sent a message that wire version {PROTOCOL_VERSION} "
                f"does not know: {error}.",
            ) from error


def preamble(version: int = PROTOCOL_VERSION) -> bytes:
    """Return the first bytes that each side sends."""
    return _PREAMBLE.pack(_MAGIC, version)


def frame_of(messages: Sequence[ToWorker] | Sequence[FromWorker]) -> bytes:
    """Encode ``messages`` as one frame, ready to send."""
    try:
        body = msgspec.msgpack.encode(messages)
    except UnicodeEncodeError as error:
        # A path on the command line may have any bytes; the wire is UTF-8.
        shown = str(error.object).encode("utf-8", "backslashreplace").decode()
        raise ConfigError(f"{shown}: not text in UTF-8; rename it.") from error
    return _LENGTH.pack(len(body)) + body


def reader_from_worker() -> FrameReader[FromWorker]:
    """Return the parent's frame reader."""
    decoder: msgspec.msgpack.Decoder[list[FromWorker]] = msgspec.msgpack.Decoder(list[FromWorker])
    return FrameReader(decoder, "worker")


def reader_to_worker() -> FrameReader[ToWorker]:
    """Return the worker's frame reader."""
    decoder: msgspec.msgpack.Decoder[list[ToWorker]] = msgspec.msgpack.Decoder(list[ToWorker])
    return FrameReader(decoder, "parent")


class ParentWire:
    """The parent's end.  Sends never block, so that a hung worker cannot hang its parent.

    For one thread only.  Owns the socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader = reader_from_worker()
        self._unsent = bytearray(preamble())
        self._outbox: list[ToWorker] = []

    def post(self, message: ToWorker) -> None:
        """Queue ``message``; the next ``exchange`` sends it."""
        self._outbox.append(message)

    def exchange(self, timeout_s: float) -> list[FromWorker]:
        """Send the queue, then wait up to ``timeout_s`` for something to read.

        Raises:
            WireClosedError: the worker is gone and everything it sent has been read.
            WorkerFailedError: it uses another version.
        """
        self._push()
        wants_write = [self._socket] if self._unsent else []
        readable, writable, _ = select.select([self._socket], wants_write, [], timeout_s)
        if writable:
            self._push()
        return self._read_all() if readable else []

    def fileno(self) -> int:
        """Return the descriptor, for a loop that waits until it is readable or writable."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether some posted messages are not sent yet, because the worker does not read."""
        return bool(self._unsent or self._outbox)

    def close(self) -> None:
        """Close the socket; the worker reads end of file and exits."""
        self._socket.close()

    def _push(self) -> None:
        if self._outbox:
            self._unsent += frame_of(self._outbox)
            self._outbox.clear()
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            # Messages sent before the worker died are still to be read; reading reports the end.
            self._unsent.clear()

    def _read_all(self) -> list[FromWorker]:
        messages: list[FromWorker] = []
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return messages
            except ConnectionResetError:
                data = b""
            if not data:
                if messages:
                    return messages
                raise WireClosedError
            messages += self._reader.feed(data)


class WorkerWire:
    """The worker's end: one thread receives, any thread sends.  Owns the socket.

    Raises:
        WireClosedError: the parent was gone from the start.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._reader = reader_to_worker()
        self._lock = threading.Lock()
        try:
            sock.sendall(preamble())
        except OSError as error:
            raise WireClosedError from error

    def fileno(self) -> int:
        """Return the descriptor, for a forked child that must close it."""
        return self._socket.fileno()

    def send(self, *messages: FromWorker) -> None:
        """Send ``messages`` in one frame; blocks while the parent does not read.

        Raises:
            WireClosedError: the parent is gone.
        """
        frame = frame_of(messages)
        try:
            with self._lock:
                self._socket.sendall(frame)
        except OSError as error:
            raise WireClosedError from error

    def receive(self) -> list[ToWorker]:
        """Wait for at least one message.

        Raises:
            WireClosedError: the parent is gone.
        """
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except OSError as error:
                raise WireClosedError from error
            if not data:
                raise WireClosedError
            messages = self._reader.feed(data)
            if messages:
                return messages
