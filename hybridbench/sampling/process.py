"""Read what the kernel reports about a process in /proc, from outside, without stopping it.

Memory, file descriptors, CPU time used, and time waited for a CPU: a starved worker looks slow.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from hybridbench.foundation.errors import ConfigError
from hybridbench.sampling.forked_child import CHILD_NAME

_KIB = 1024
_BUSY = ("user", "nice", "system", "irq", "softirq")
_PROC = Path("/proc")
_OPEN_FILES = 1 << 16
_PUNCTUAL_NICENESS = -10


class ProcessGoneError(Exception):
    """The process has ended, or we have no permission to read it."""


@dataclass(frozen=True)
class ProcessMemory:
    """One reading of ``/proc/PID/status``: 50 microseconds, without any effect on the process."""

    rss_bytes: int
    rss_anon_bytes: int
    swap_bytes: int
    threads: int
    shared_bytes: int = 0

    @property
    def anon_swap_bytes(self) -> int:
        """Private memory, resident or swapped: RSS alone falls when pages are swapped out."""
        return self.rss_anon_bytes + self.swap_bytes


def require_proc(proc: Path = _PROC) -> None:
    """Check that /proc is mounted.

    Raises:
        ConfigError: it is not, so nothing can be measured.
    """
    if not (proc / "self" / "status").exists():
        raise ConfigError(
            f"{proc} is not mounted here, and memory is measured there: mount it "
            "(`mount -t proc proc /proc`), or give the container one."
        )


def read_process_memory(pid: int, proc: Path = _PROC) -> ProcessMemory:
    """Return the current memory of ``pid``.

    Raises:
        ProcessGoneError: there is no such process, or it is a zombie (which has no memory lines).
    """
    return parse_status(_read(proc / str(pid) / "status"))


def own_private_bytes() -> int:
    """Return the private memory of the calling process, resident or swapped."""
    return read_process_memory(os.getpid()).anon_swap_bytes


def allow_open_files() -> None:
    """Let this process open many files: each connection is one, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def take_priority() -> None:
    """Have this process scheduled before others, if we may: as root, or with CAP_SYS_NICE.

    A desktop's kernel shares the processors between sessions first, and niceness counts only within
    one, so the session's own niceness is set too (``man 7 sched``, "The autogroup feature").
    """
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PUNCTUAL_NICENESS)
    with suppress(OSError):  # also: this kernel has no autogroups
        (_PROC / "self/autogroup").write_text(str(_PUNCTUAL_NICENESS))


def parse_status(text: str) -> ProcessMemory:
    """Parse the memory lines of a ``status`` file.

    Raises:
        ProcessGoneError: the lines are missing, as for a zombie.
    """
    fields = _fields_kib(text)
    if "VmRSS" not in fields:
        raise ProcessGoneError
    return ProcessMemory(
        rss_bytes=fields["VmRSS"] * _KIB,
        rss_anon_bytes=fields.get("RssAnon", 0) * _KIB,
        swap_bytes=fields.get("VmSwap", 0) * _KIB,
        threads=fields.get("Threads", 0),
        shared_bytes=fields.get("RssShmem", 0) * _KIB,
    )


def read_pss_bytes(pid: int, proc: Path = _PROC) -> int | None:
    """Return the proportional set size, or None if the kernel does not report it.

    Walks the page tables under the memory map's lock: 4 to 100 ms, so it is read less often.

    Raises:
        ProcessGoneError: there is no such process.
    """
    try:
        text = _read(proc / str(pid) / "smaps_rollup")
    except PermissionError:
        return None
    pss_kib = _fields_kib(text).get("Pss")
    return None if pss_kib is None else pss_kib * _KIB


def count_open_fds(pid: int, proc: Path = _PROC) -> int | None:
    """Count the open file descriptors of ``pid``; None without permission.

    Raises:
        ProcessGoneError: there is no such process.
    """
    try:
        with os.scandir(proc / str(pid) / "fd") as entries:
            return sum(1 for _ in entries)
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessGoneError from error


def read_children(pid: int, proc: Path = _PROC) -> tuple[int, int]:
    """Count ``pid``'s live children and its zombies, without the copies that heap scans fork."""
    states = []
    for thread in (proc / str(pid) / "task").glob("*/children"):
        for child in _text_or_nothing(thread).split():
            # The name in parentheses may contain anything; the state follows it.
            name, _, rest = _text_or_nothing(proc / child / "stat").rpartition(") ")
            if name and name.partition("(")[2] != CHILD_NAME:
                states.append(rest[0])
    ended = sum(state in "ZX" for state in states)
    return len(states) - ended, ended


def read_cpu_wait_s(pid: int, proc: Path) -> float | None:
    """Return the seconds that ``pid``'s main thread has waited in a run queue; None if unknown."""
    words = _text_or_nothing(proc / str(pid) / "schedstat").split()
    if len(words) < 2 or not words[1].isdigit():
        return None
    return int(words[1]) / 1e9


def read_cpu_s(pid: int, proc: Path = _PROC) -> float | None:
    """Return the CPU seconds of all threads of ``pid``, without children; None if unknown."""
    try:
        threads = list((proc / str(pid) / "task").iterdir())
    except OSError:
        return None
    words = [_text_or_nothing(thread / "schedstat").split() for thread in threads]
    ran_ns = [int(parts[0]) for parts in words if parts and parts[0].isdigit()]
    return sum(ran_ns) / 1e9 if ran_ns else None


def read_steal_s() -> float | None:
    """Return the mean seconds per CPU stolen by the hypervisor; None if unknown."""
    try:
        each = psutil.cpu_times(percpu=True)
    except OSError:
        return None
    return sum(times.steal for times in each) / len(each) if each else None


def read_busy_s() -> float | None:
    """Return the seconds that all CPUs spent on programs and on kernel work for them.

    None if unknown.
    """
    try:
        times = psutil.cpu_times()
    except OSError:
        return None
    # On Linux ``user`` and ``nice`` include guest time.
    return sum(getattr(times, part, 0.0) for part in _BUSY)


def read_family_cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds of these processes and all their descendants.

    This includes descendants that ended and were waited for.
    """
    family: dict[int, psutil.Process] = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            family.update({each.pid: each for each in (root, *root.children(recursive=True))})
    spent_s = 0.0
    for process in family.values():
        with suppress(psutil.Error):
            spent_s += sum(process.cpu_times()[:4])
    return spent_s


def _read(path: Path) -> str:
    try:
        # The kernel cuts a name after 15 bytes, perhaps in the middle of a character.
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessGoneError from error


def _text_or_nothing(path: Path) -> str:
    try:
        return _read(path)
    except (OSError, ProcessGoneError):
        return ""


def _fields_kib(text: str) -> dict[str, int]:
    """Parse ``Name:  123 kB`` and ``Name:  123`` lines; skip all others."""
    fields = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            fields[name] = int(words[0])
    return fields
