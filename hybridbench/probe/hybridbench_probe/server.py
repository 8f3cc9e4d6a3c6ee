"""The probe's thread and socket: one request per connection, one JSON object per line.

The thread blocks every signal, so that signals go to the program's own threads, and between
requests it only waits.  Descriptors have high numbers and are checked before each use: a program
may close descriptors that it did not open, and reuse their numbers.
"""

from __future__ import annotations

import _socket
import _thread
import atexit
import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import struct
import sys
import time

from . import census, idle, sliced, stacks
from .forked import Child, Copied, Forker

_REQUEST_BYTES_MAX = 1 << 16
_TIMEOUT = struct.pack("ll", 5, 0)
_NO_MEMORY = b'{"failed": "the process has no memory left"}\n'
_WAKE_S = 5.0
_STUCK_S = 0.4
_TRIES = 6
_FAILED = {
    0: "",
    1 << 8: "the probe met objects that it cannot read",
    2 << 8: "the copy of the process had no memory left",
}
_POLL_S = 0.02
_STOP_S = 1.0
_REBINDINGS_MAX = 20
_DESCRIPTORS_FROM = 900
_F_DUPFD_CLOEXEC = 1030
_EVERY_SIGNAL = signal.valid_signals()
# Python 3.12 warns if a program forks while it has more than one thread, ours included.
_FORK_WARNS = sys.version_info >= (3, 12)

_sleep = time.sleep
_poll = select.poll


class _LeavingError(Exception):
    """The thread must end now; the next one continues its task."""


def serve_process(folder: str) -> None:
    """Answer on ``folder``/PID.sock from now on, also in forked children.

    Raises:
        OSError: the folder is not private to this user, or cannot be written.
    """
    server = Server(folder)
    in_child = server.in_forked_child
    os.register_at_fork(
        before=server.before_fork, after_in_parent=server.after_fork, after_in_child=in_child
    )
    server.begin(Forker(in_child))
    atexit.register(server.end)


class Descriptor:
    """A descriptor number and the file opened there, which the program may have closed."""

    def __init__(self, low: int) -> None:
        """Take ownership of ``low``."""
        self.number = _moved_up(low)
        self._file = self._what()

    def _what(self) -> tuple[int, int] | None:
        try:
            found = os.fstat(self.number)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @property
    def is_ours(self) -> bool:
        """Whether the number still refers to our file."""
        return self._file is not None and self._what() == self._file

    def close(self) -> None:
        """Close it if it is still ours."""
        if self.is_ours:
            os.close(self.number)
        self._file = None


def _moved_up(low: int) -> int:
    """Move ``low`` to a high number, because the program uses low ones."""
    try:
        high = fcntl.fcntl(low, _F_DUPFD_CLOEXEC, _DESCRIPTORS_FROM)
    except OSError:
        # The limit of open files does not allow that number.
        return low
    os.close(low)
    return high


class Server:
    """Owns the socket and the thread of one process; a forked child makes its own."""

    def __init__(self, folder: str) -> None:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError("the probe's directory is not private")
        self._folder = folder
        self._forker: Forker | None = None
        self._clear()

    def _clear(self) -> None:
        self._pid = os.getpid()
        self._path = os.path.join(self._folder, f"{self._pid}.sock")
        self._listener: Descriptor | None = None
        self._wake: tuple[Descriptor, Descriptor] | None = None
        self._thread = 0
        self._stopping = False
        self._rebindings = 0
        self._task: _Task | None = None

    # Called on the program's threads: start, end, and its forks.

    def begin(self, forker: Forker) -> None:
        """Bind the socket and start the thread."""
        self._forker = forker
        self._bind()
        self._start_thread()

    def end(self) -> None:
        """Clean up at the end of the program.

        A thread that still runs while Python shuts down is ended by pthread_exit, for which glibc
        loads a library: if that fails for lack of memory or descriptors, the process is aborted.
        """
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            with contextlib.suppress(Exception):
                self._stop_thread()

    def before_fork(self) -> None:
        """Stop the thread before the program's ``os.fork`` if Python would warn."""
        if not _FORK_WARNS or not self._thread:
            return
        # A warning by Python is better than an error of ours.
        with contextlib.suppress(Exception):
            self._stop_thread()

    def after_fork(self) -> None:
        """Restart the thread in the parent."""
        if self._stopping and self._listener is not None:
            try:
                self._start_thread()
            except Exception:
                self._thread = 0

    def in_forked_child(self) -> None:
        """Restart in a child, which lacks our thread and must not use its parent's socket."""
        if self._forker is None:
            return
        try:
            for held in (self._listener, *(self._wake or ())):
                if held is not None:
                    held.close()
            if self._task is not None:
                # The watcher waits until nobody holds its connection any more.
                self._task.connection.close()
            self._clear()
            self.begin(self._forker)
        except Exception:
            self._thread = 0

    def _start_thread(self) -> None:
        self._stopping = False
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _EVERY_SIGNAL)
        try:
            self._thread = _thread.start_new_thread(self._serve, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _stop_thread(self) -> None:
        self._stopping = True
        if self._wake is not None and self._wake[1].is_ours:
            os.write(self._wake[1].number, b"x")
        end_s = time.monotonic() + _STOP_S
        # Wait until the kernel has removed the thread: Python's warning counts kernel threads.
        while self._thread and time.monotonic() < end_s:
            if not os.path.exists(f"/proc/self/task/{self._thread}"):
                self._thread = 0
                return
            _sleep(0.00005)

    def _bind(self) -> None:
        """Bind through the directory's descriptor: a socket address has at most 107 bytes."""
        self._close(unlink=True)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            short = f"/proc/self/fd/{folder}/{self._pid}.sock"
            listener.bind(short)
            os.chmod(self._path, 0o600)
            listener.listen(4)
        except BaseException:
            listener.close()
            raise
        finally:
            os.close(folder)
        self._listener = Descriptor(listener.detach())
        read, write = os.pipe()
        self._wake = (Descriptor(read), Descriptor(write))

    def _close(self, *, unlink: bool) -> None:
        for held in (self._listener, *(self._wake or ())):
            if held is not None:
                held.close()
        self._listener = self._wake = None
        if unlink:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    # Called on the probe's thread.

    def _serve(self) -> None:
        self._thread = _thread.get_native_id()
        try:
            if self._task is not None:
                self._work()
            while not self._stopping:
                try:
                    self._serve_one()
                except MemoryError:
                    _sleep(_WAKE_S)
        except _LeavingError:
            pass
        except BaseException:
            # Print nothing and never disturb the program.
            self._close(unlink=True)
            self._thread = 0

    def _serve_one(self) -> None:
        listener, wake = self._listener, self._wake
        if listener is None or wake is None or not (listener.is_ours and wake[0].is_ours):
            if self._rebindings >= _REBINDINGS_MAX:
                raise OSError("the program closes the probe's descriptors")
            self._rebindings += 1
            self._bind()
            return
        poll = _poll()
        poll.register(listener.number, select.POLLIN)
        poll.register(wake[0].number, select.POLLIN)
        ready = [number for number, _ in poll.poll(_WAKE_S * 1e3)]
        if wake[0].number in ready and wake[0].is_ours:
            os.read(wake[0].number, 64)
        if self._stopping:
            raise _LeavingError
        if listener.number in ready and listener.is_ours:
            self._accept(listener)

    def _accept(self, listener: Descriptor) -> None:
        door = _socket.socket(fileno=listener.number)
        try:
            door.settimeout(0.0)
            number, _ = door._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        finally:
            door.detach()
        task = self._task = _Task(Descriptor(number))
        try:
            task.read_request()
            self._work()
        except MemoryError:
            task.send(_NO_MEMORY)
        except (OSError, ValueError):
            # The client is gone, or is not a watcher.
            pass
        self._drop_task()

    def _work(self) -> None:
        task = self._task
        if task is None:
            return
        operation = task.request.get("op")
        try:
            if operation == "census":
                self._census(task)
            elif operation == "status":
                task.answer(idle.status())
            elif operation == "idle":
                task.answer(idle.look(collect=task.request.get("collect") is True))
            elif operation == "stacks":
                task.answer(stacks.waiting())
            else:
                task.answer({"failed": "the probe does not know this request"})
        except (_LeavingError, MemoryError, OSError):
            raise
        except Exception as error:
            task.answer({"failed": f"the probe failed with {type(error).__name__}"})
        self._drop_task()

    def _drop_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            if task.child is not None:
                task.child.kill()
            task.connection.close()

    def _census(self, task: _Task) -> None:
        if task.request.get("way") == "slices":
            self._take_slices(task)
            return
        forker = self._forker
        why_not = "it has just begun" if forker is None else forker.why_not
        if forker is None or why_not:
            task.answer({"failed": why_not})
            return
        deadline_s = _number(task.request.get("deadline_s"), 60.0)
        while task.tries < _TRIES:
            task.tries += 1
            if not self._fork(task, forker, deadline_s) or self._await_child(task, deadline_s):
                return
        task.answer({"failed": "its copies were stuck on a lock, or it forked while each was read"})

    def _fork(self, task: _Task, forker: Forker, deadline_s: float) -> bool:
        if not task.connection.is_ours:
            # The program may have closed it, and opened its own file under that number.
            return False
        left_out = task.request.get("left_out")
        ranges = left_out if isinstance(left_out, list) else []
        try:
            pid, pause_s, copied = forker.fork(task.connection.number, ranges)
        except OSError as error:
            task.answer({"failed": f"the process cannot fork: {os.strerror(error.errno or 0)}"})
            return False
        if pid == 0:
            self._be_the_child(task, forker, deadline_s, copied)
        task.add_pause(pause_s)
        task.child = Child(pid)
        return True

    def _be_the_child(self, task: _Task, forker: Forker, deadline_s: float, copied: Copied) -> None:
        status = 1
        try:
            asked = task.request
            at_rest = asked.get("at_rest") is True
            forker.confine(int(deadline_s) + 1, self._pid, at_rest=at_rest)
            found = census.take(copied, whole=asked.get("whole") is True)
            counts = json.dumps(found).encode()
            cost = json.dumps({"cpu_s": time.process_time()}).encode()
            forker.write(counts + b"\n" + cost + b"\n")
            status = 0
        except MemoryError:
            status = 2
        finally:
            forker.leave(status)

    def _await_child(self, task: _Task, deadline_s: float) -> bool:
        """Wait for the child; True if the request was answered, False to try again."""
        child = task.child
        assert child is not None
        look_s = time.perf_counter() + _STUCK_S
        while not child.is_done():
            if self._stopping:
                # The child dies with this thread.
                child.kill()
                task.child = None
                raise _LeavingError
            if time.perf_counter() - child.started_s > deadline_s:
                child.kill()
                task.child = None
                task.answer({"failed": f"the heap scan took longer than {deadline_s:.0f} s"})
                return True
            if time.perf_counter() > look_s:
                look_s = time.perf_counter() + _STUCK_S / 2
                if not child.is_stuck(_STUCK_S):
                    continue
                child.kill()
                task.child = None
                return False
            self._wait(_POLL_S)
        task.child = None
        failed = _FAILED.get(child.status or 0, "its copy was killed")
        task.answer({"failed": failed} if failed else {"way": "fork"})
        return True

    def _wait(self, seconds: float) -> None:
        """Sleep for ``seconds``, or less if the thread must end."""
        wake = self._wake
        if wake is None or not wake[0].is_ours:
            _sleep(seconds)
            return
        poll = _poll()
        poll.register(wake[0].number, select.POLLIN)
        poll.poll(seconds * 1e3)

    def _take_slices(self, task: _Task) -> None:
        if task.walk is None:
            task.walk = sliced.Walk()
        walk = task.walk
        while not walk.is_done:
            if self._stopping:
                raise _LeavingError
            started_s, cpu_s = time.perf_counter(), time.thread_time()
            walk.take_slice()
            task.add_pause(time.perf_counter() - started_s)
            task.cpu_s += time.thread_time() - cpu_s
            self._wait(sliced.REST_S)
        found = walk.found()
        task.walk = None
        task.answer({**found, "way": "slices"})


class _Task:
    """A request and the state of its answer; it may outlive the thread that began it."""

    def __init__(self, connection: Descriptor) -> None:
        self.connection = connection
        self.request: dict[str, object] = {}
        self.child: Child | None = None
        self.walk: sliced.Walk | None = None
        self.tries = 0
        self.pause_s = 0.0
        self.longest_pause_s = 0.0
        self.cpu_s = 0.0

    def add_pause(self, seconds: float) -> None:
        """Record a pause of the program."""
        self.pause_s += seconds
        self.longest_pause_s = max(self.longest_pause_s, seconds)

    def answer(self, fields: dict[str, object]) -> None:
        """Send the last line, including the cost of the request."""
        cost = {
            "pause_s": self.pause_s,
            "longest_pause_s": self.longest_pause_s,
            "cpu_s": self.cpu_s,
        }
        self.send(json.dumps({**cost, **fields}).encode() + b"\n")

    def read_request(self) -> None:
        """Read the request of a process of this user.

        Raises:
            OSError: the process belongs to another user, or sends nothing.
            ValueError: it does not send a request.
        """
        connection = _socket.socket(fileno=self.connection.number)
        try:
            connection.settimeout(None)
            peer = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
            for option in (_socket.SO_RCVTIMEO, _socket.SO_SNDTIMEO):
                connection.setsockopt(_socket.SOL_SOCKET, option, _TIMEOUT)
        finally:
            connection.detach()
        if struct.unpack("3i", peer)[1] != os.geteuid():
            raise PermissionError("another user asks")
        data = b""
        while not data.endswith(b"\n"):
            part = os.read(self.connection.number, _REQUEST_BYTES_MAX)
            data += part
            if not part or len(data) > _REQUEST_BYTES_MAX:
                raise ValueError("no request")
        request = json.loads(data)
        self.request = request if isinstance(request, dict) else {}

    def send(self, data: bytes) -> None:
        """Send all of ``data``, unless the client leaves or the program closes the socket."""
        view = memoryview(data)
        while view and self.connection.is_ours:
            try:
                view = view[os.write(self.connection.number, view) :]
            except OSError:
                return


def _number(given: object, otherwise: float) -> float:
    return float(given) if isinstance(given, (int, float)) else otherwise
