"""The bench's side of the probe: find processes that have one, look at them, limit the cost.

The probe itself is ``hybridbench/probe/``, which is loaded through the program's environment.  A
look pauses the process and uses CPU time; the client adds up both, and decides when the next look
may be taken.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import asdict

from hybridbench import probe
from hybridbench.foundation.foreign import GIB, MIB
from hybridbench.sampling.headroom import memory_headroom
from hybridbench.sampling.process import ProcessGoneError, read_process_memory

DIRECTORY = "HYBRIDBENCH_PROBE_DIR"
INSTRUMENT = "HYBRIDBENCH_PROBE_INSTRUMENT"
# A fork stops the process for about 15 ms per GiB of its private memory.
FORK_BYTES_MAX = 4 * GIB
PAUSE_SHARE_MAX = 0.005
CPU_SHARE_MAX = 0.05

_STATUS_S = 2.0
_CENSUS_S = 120.0  # a child of lowest priority waits long for a busy CPU
_RETRY_S = 0.3
_TRY_AGAIN_S = 0.02
_SPARE_S = 5.0
_ANSWER_BYTES_MAX = 64 * MIB
_DEVICES = (" /dev/nvidia", " /dev/kfd", " /dev/dri/", " /dev/infiniband/")
_COLLECT_S_PER_OBJECT = 1.5e-6
_IDLE_PAUSE_S_MAX = 0.5
_CHILD_BYTES_MIN = 64 * MIB
_CHILD_SHARE = 0.25
_Answer = TypeVar("_Answer")


class ProbeError(Exception):
    """Why a look failed, in one sentence."""


class ProbeGoneError(ProbeError):
    """The process has ended."""


class ProbeStatus(msgspec.Struct, frozen=True):
    """Allocator and collector counts of a process, read in a millisecond.

    Attributes:
        blocks: blocks in use of Python's small-object allocator.
        malloc_bytes: bytes in use of the C allocator; None if unknown.
        frozen: objects hidden from the collector by ``gc.freeze``.
        collections: of each generation, since the start.
        tracked: objects tracked by the collector at the last heap scan; None before the first.
    """

    pid: int
    python: str
    blocks: int
    malloc_bytes: int | None
    frozen: int
    collections: tuple[int, ...] = ()
    collector_enabled: bool = True
    tracked: int | None = None


class IdleAnswer(msgspec.Struct, frozen=True):
    """What a process holds after a collection, or without one if it would take too long.

    Attributes:
        unreachable: objects that the collection found; None without a collection.
        pause_s: how long the process was stopped.
    """

    pid: int
    blocks: int
    malloc_bytes: int | None
    unreachable: int | None
    collect_s: float
    pause_s: float


class Counts(msgspec.Struct, frozen=True):
    """The counts of a heap scan by name, as in the event ``Census``."""

    types: dict[str, int] = {}
    entries: dict[str, int] = {}
    containers: dict[str, int] = {}
    bounds: dict[str, int] = {}
    limits: dict[str, int] = {}
    holds: dict[str, str] = {}

    def since(self, before: Counts) -> Counts:
        """Return only what changed, with 0 for a name that is gone (``""`` in ``holds``)."""
        return Counts(
            types=_changes(before.types, self.types, 0),
            entries=_changes(before.entries, self.entries, 0),
            containers=_changes(before.containers, self.containers, 0),
            bounds=_changes(before.bounds, self.bounds, 0),
            limits=_changes(before.limits, self.limits, 0),
            holds=_changes(before.holds, self.holds, ""),
        )


class CensusState(Counts, frozen=True, kw_only=True):
    """All counts of one heap scan, for comparison with the next one."""

    index: int = 0


class HeapCensus(Counts, frozen=True, kw_only=True):
    """One heap scan: the counts that changed since the known state; without one, all of them.

    Attributes:
        state: all counts.
        way: "fork", or "slices" in the process itself.  For slices, ``types`` is empty, containers
            of more than 4,096 entries are not examined, and totals are approximate.
        tracked: objects that the collector tracks; None for slices.
        frozen: how many of them ``gc.freeze`` had hidden.
        longest_pause_s: the longest of the pauses that ``pause_s`` sums up.
    """

    index: int
    whole: bool
    pause_s: float
    longest_pause_s: float
    cpu_s: float
    way: str
    tracked: int | None
    frozen: int
    state: CensusState


class _Stacks(msgspec.Struct):
    """Where the threads and coroutines of a process wait."""

    stacks: list[str]


class _Line(msgspec.Struct):
    """One line of any kind of answer, without its counts."""

    failed: str = ""
    pause_s: float = 0.0
    longest_pause_s: float = 0.0
    cpu_s: float = 0.0
    way: str = ""
    tracked: int | None = None
    frozen: int = 0


class Budget:
    """The cost of looks at one process so far, and when the next one may be taken.

    Pauses may take 0.5 % of the time since this budget was created, and forked children 5 % of a
    CPU.  Pauses of an idle process are not counted.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._since_s = now_s()
        self.pause_s = 0.0
        self.longest_pause_s = 0.0
        self.cpu_s = 0.0
        self.last_cpu_s = 0.0
        self.looks = 0

    def charge(self, pause_s: float, cpu_s: float = 0.0, longest_pause_s: float = 0.0) -> None:
        """Add the cost of a look."""
        self.looks += 1
        self.pause_s += pause_s
        self.cpu_s += cpu_s
        self.last_cpu_s = cpu_s or self.last_cpu_s
        self.longest_pause_s = max(self.longest_pause_s, longest_pause_s or pause_s)

    def wait_s(self, *, at_rest: bool = False) -> float:
        """Return the seconds until the next look may be taken; 0 if it may be taken now.

        A look ``at_rest`` delays nothing, so only CPU time counts.
        """
        pause_s = 0.0 if at_rest else self.pause_s
        due_s = self._since_s + max(pause_s / PAUSE_SHARE_MAX, self.cpu_s / CPU_SHARE_MAX)
        return max(0.0, due_s - self._now_s()) if self.looks else 0.0

    def spares(self, until_s: float) -> bool:
        """Whether a look may be taken now and another one, when idle, in ``until_s`` seconds."""
        due_s = self._since_s + (self.cpu_s + self.last_cpu_s) / CPU_SHARE_MAX
        return self.wait_s() == 0 and due_s <= self._now_s() + until_s

    def shares(self) -> tuple[float, float]:
        """Return the share of time spent in pauses so far, and the share of one CPU used."""
        elapsed_s = max(self._now_s() - self._since_s, 1e-9)
        return self.pause_s / elapsed_s, self.cpu_s / elapsed_s


def probe_environment(
    folder: Path, instrument: Sequence[str], base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment that starts a command with the probe.

    Args:
        folder: the run's directory for the sockets, made private to this user.
        instrument: patterns of commands to instrument; empty for the command and its children.
        base: the rest of the environment; its PYTHONPATH is kept after the probe's folder.

    Raises:
        ProbeError: the folder cannot be made, or belongs to another user.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ProbeError(f"the probe's directory cannot be made: {error.strerror}.") from error
    path = [str(probe.FOLDER), *filter(None, [base.get("PYTHONPATH", "")])]
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(path),
        DIRECTORY: str(folder.resolve()),
        INSTRUMENT: "\n".join(instrument),
    }


def carried_folder(pid: int, proc: Path = Path("/proc")) -> Path | None:
    """Return the probe directory with which a running process was started, as a path from here.

    None if it has none, or runs in another pid namespace (a container of its own).
    """
    process = proc / str(pid)
    try:
        if (process / "ns" / "pid").readlink() != (proc / "self" / "ns" / "pid").readlink():
            return None
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    start = f"{DIRECTORY}=".encode()
    named = [os.fsdecode(one.removeprefix(start)) for one in variables if one.startswith(start)]
    folders = [process / "root" / name.lstrip("/") for name in named if name.startswith("/")]
    return next((folder for folder in folders if folder.is_dir()), None)


class ProbeClient:
    """Talks to the probes of one run.  Calls block for a bounded time; use it on one thread only.

    Args:
        folder: the directory passed to ``probe_environment``.
        fork_bytes_max: a process with more private memory is not forked.
    """

    def __init__(self, folder: Path, fork_bytes_max: int = FORK_BYTES_MAX) -> None:
        self._folder = folder
        self._fork_bytes_max = fork_bytes_max
        self._budgets: dict[int, Budget] = {}
        self._tracked: dict[int, int] = {}
        self._collect_s_per_object: dict[int, float] = {}

    def pids(self) -> list[int]:
        """Return the pids of live processes with a probe; remove the sockets of ended ones."""
        living = []
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*.sock"):
                if not path.stem.isdigit():
                    continue
                if _is_alive(int(path.stem)):
                    living.append(int(path.stem))
                else:
                    path.unlink(missing_ok=True)
        for pid in self._budgets.keys() - set(living):
            self._forget(pid)
        return sorted(living)

    def budget(self, pid: int) -> Budget:
        """Return the budget for looks at one process."""
        return self._budgets.setdefault(pid, Budget())

    def status(self, pid: int) -> ProbeStatus:
        """Return the counts of the process's allocators and collector.

        Raises:
            ProbeError: there is no answer; the message says why.
        """
        lines = self._ask(pid, {"op": "status"}, _STATUS_S)
        status = _decoded(lines[-1], ProbeStatus)
        return msgspec.structs.replace(status, tracked=self._tracked.get(pid))

    def stacks(self, pid: int) -> list[str]:
        """Return where the process's threads and coroutines wait, one line for equal stacks.

        Raises:
            ProbeError: there is no answer; the message says why.
        """
        return _decoded(self._ask(pid, {"op": "stacks"}, _STATUS_S)[-1], _Stacks).stacks

    def census(
        self, pid: int, *, whole: bool, known: CensusState | None = None, at_rest: bool = False
    ) -> HeapCensus:
        """Count types and containers, by fork, or in slices if a fork would cost too much.

        Args:
            whole: also search for dictionaries that the collector does not track, at ten times the
                cost; not for slices.
            known: the state after the last scan of this process.
            at_rest: the process is idle, so that a pause delays nothing, and others wait for the
                scan.

        Raises:
            ProbeError: the scan failed: too little memory, or the process is stuck or too slow.
        """
        account = self.budget(pid)
        way, left_out = self._way(pid)
        request = {
            "op": "census",
            "way": way,
            "whole": whole and way == "fork",
            "left_out": left_out,
            "deadline_s": _CENSUS_S,
            "at_rest": at_rest,
        }
        lines = self._ask(pid, request, _CENSUS_S + _SPARE_S)
        cost = _decoded(lines[-1], _Line)
        if cost.way != way:
            # The copy answered, but the process ended before it could report the cost.
            raise ProbeGoneError(f"process {pid} has ended.")
        scan, counts = _decoded(lines[0], _Line), _decoded(lines[0], Counts)
        # The second line from a copy has the copy's own cost.
        cpu_s = cost.cpu_s + sum(_decoded(line, _Line).cpu_s for line in lines[1:-1])
        if at_rest:
            account.charge(0.0, cpu_s)
        else:
            account.charge(cost.pause_s, cpu_s, cost.longest_pause_s)
        if scan.tracked is not None:
            self._tracked[pid] = scan.tracked
        index = 0 if known is None else known.index + 1
        return HeapCensus(
            **asdict(counts.since(known or Counts())),
            index=index,
            whole=whole and way == "fork",
            pause_s=cost.pause_s,
            longest_pause_s=cost.longest_pause_s,
            cpu_s=cpu_s,
            way=way,
            tracked=scan.tracked,
            frozen=scan.frozen,
            state=CensusState(**asdict(counts), index=index),
        )

    def idle_look(self, pid: int) -> IdleAnswer:
        """Look at what an idle process holds, after a collection if that is short enough.

        If the process has disabled its collector, it keeps its garbage, so this collects nothing.

        Raises:
            ProbeError: there is no answer; the message says why.
        """
        tracked = self._tracked.get(pid)
        seconds_each = self._collect_s_per_object.get(pid, _COLLECT_S_PER_OBJECT)
        status = self.status(pid)
        unfrozen = None if tracked is None else max(0, tracked - status.frozen)
        quick = unfrozen is not None and unfrozen * seconds_each <= _IDLE_PAUSE_S_MAX
        collect = status.collector_enabled and quick
        lines = self._ask(pid, {"op": "idle", "collect": collect}, _STATUS_S + _SPARE_S)
        answer = _decoded(lines[-1], IdleAnswer)
        if answer.unreachable is not None and unfrozen:
            self._collect_s_per_object[pid] = answer.collect_s / unfrozen
        return answer

    def _forget(self, pid: int) -> None:
        for table in (self._budgets, self._tracked, self._collect_s_per_object):
            table.pop(pid, None)

    def _way(self, pid: int) -> tuple[str, list[list[int]]]:
        try:
            own_bytes = read_process_memory(pid).anon_swap_bytes
        except ProcessGoneError as error:
            raise ProbeGoneError(f"process {pid} has ended.") from error
        room = memory_headroom()
        need_bytes = max(_CHILD_BYTES_MIN, round(_CHILD_SHARE * own_bytes))
        if own_bytes > self._fork_bytes_max:
            return "slices", []
        if room is not None and room.left_bytes < need_bytes:
            raise ProbeError(
                f"no heap scan of process {pid}: a copy of it may need {need_bytes >> 20} MiB, "
                f"and {room.left_bytes >> 20} MiB are left."
            )
        return "fork", _device_ranges(Path(f"/proc/{pid}"))

    def _ask(self, pid: int, request: Mapping[str, object], timeout_s: float) -> list[bytes]:
        """Return the lines of the answer; the last one has the cost."""
        end_s = time.monotonic() + timeout_s
        retry_until_s = time.monotonic() + _RETRY_S
        while True:
            try:
                data = self._exchange(pid, msgspec.json.encode(request) + b"\n", end_s)
            except (ConnectionError, FileNotFoundError) as error:
                if not _is_alive(pid):
                    raise ProbeGoneError(f"process {pid} has ended.") from error
                data = b""
            except TimeoutError as error:
                raise ProbeError(f"the probe of process {pid} does not answer.") from error
            except OSError as error:
                raise ProbeError(f"the probe of process {pid}: {error.strerror}.") from error
            if data.endswith(b"\n"):
                break
            if time.monotonic() > retry_until_s:
                if not _is_alive(pid):
                    raise ProbeGoneError(f"process {pid} has ended.")
                other = _effective_user(pid) != os.geteuid()
                raise ProbeError(
                    f"process {pid} runs as another user."
                    if other
                    else f"process {pid} has no probe."
                )
            # The program may have closed the probe's socket; the probe binds a new one.
            time.sleep(_TRY_AGAIN_S)
        lines = data.splitlines()
        failed = _decoded(lines[-1], _Line).failed
        if failed:
            raise ProbeError(f"no look at process {pid}: {failed}.")
        return lines

    def _exchange(self, pid: int, request: bytes, end_s: float) -> bytes:
        answer = bytearray()
        with (
            _opened(self._folder) as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        ):
            connection.settimeout(max(0.01, end_s - time.monotonic()))
            # Through the directory's descriptor, because socket paths are limited to 107 bytes.
            connection.connect(f"/proc/self/fd/{folder}/{pid}.sock")
            peer = struct.unpack(
                "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            if peer[1] != os.geteuid():
                raise ProbeError(f"process {pid} runs as another user.")
            connection.sendall(request)
            while True:
                connection.settimeout(max(0.01, end_s - time.monotonic()))
                part = connection.recv(1 << 18)
                if not part:
                    return bytes(answer)
                answer += part
                if len(answer) > _ANSWER_BYTES_MAX:
                    raise ProbeError(f"the answer of process {pid} is too long.")
                if time.monotonic() > end_s:
                    raise TimeoutError


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield number
    finally:
        os.close(number)


def _decoded(line: bytes, kind: type[_Answer]) -> _Answer:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise ProbeError(f"the probe's answer cannot be read: {error}.") from error


def _changes(
    before: Mapping[str, _Answer], after: Mapping[str, _Answer], gone: _Answer
) -> dict[str, _Answer]:
    changed = {name: value for name, value in after.items() if before.get(name, gone) != value}
    return changed | {name: gone for name in before if name not in after}


def _device_ranges(folder: Path) -> list[list[int]]:
    """Return address and size of a process's device mappings that can be excluded from a fork.

    Skips mappings that are excluded already (``dc``) or that the kernel would not restore (``io``).
    """
    try:
        mapped = (folder / "maps").read_text("utf-8", "replace")
        if not any(device in mapped for device in _DEVICES):
            return []
        lines = (folder / "smaps").read_text("utf-8", "replace").split("\n")
    except OSError:
        return []
    found: list[list[int]] = []
    mapping: list[int] = []
    for line in lines:
        words = line.split()
        if words and not words[0].endswith(":"):
            start, _, end = words[0].partition("-")
            is_device = any(device in line for device in _DEVICES)
            mapping = [int(start, 16), int(end, 16) - int(start, 16)] if is_device else []
        elif mapping and line.startswith("VmFlags:") and not {"dc", "io"} & set(words):
            found.append(mapping)
    return found


def _effective_user(pid: int) -> int:
    """Return the effective user of ``pid``, which may not own its /proc folder; -1 if it ended."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
        return int(next(line for line in lines if line.startswith("Uid:")).split()[2])
    return -1


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in {b"Z", b"X"}
