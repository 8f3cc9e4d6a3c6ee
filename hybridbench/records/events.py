"""What rare events of a run carry, by kind; a field that an older version lacks has its default.

``RunEvent.read`` makes these of an event's data.  Any other kind of event is kept as it is.
"""

from __future__ import annotations

import msgspec


class Phase(msgspec.Struct, frozen=True):
    """From this moment on; ``phase`` says the same where it was told from samples alone."""

    name: str = ""
    phase: str = ""


class Segment(msgspec.Struct, frozen=True):
    """A new worker goes on with a run that was cut off."""

    index: int = 0


class Interrupted(msgspec.Struct, frozen=True):
    """A signal ended the run."""

    signal: str = ""


class WorkloadFailed(msgspec.Struct, frozen=True):
    """No request came after it."""

    text: str = "the workload failed"


class DiskFull(msgspec.Struct, frozen=True):
    """The disk refused a write: what came afterwards is nowhere."""

    text: str = "the disk refused a write"


class Crash(msgspec.Struct, frozen=True):
    """How the worker ended; its last words are lines, or one text."""

    reason: str = "exit"
    detail: str = ""
    stderr_tail: tuple[str, ...] | str = ()

    @property
    def stderr_lines(self) -> list[str]:
        tail = self.stderr_tail
        return tail.strip().splitlines() if isinstance(tail, str) else list(tail)


class EngineLog(msgspec.Struct, frozen=True):
    """A line of the engine; ``count`` is how often it had been said by then, 0 if unknown."""

    text: str = ""
    count: int = 0


class EngineViolation(msgspec.Struct, frozen=True):
    """The engine's own check objected.

    ``count`` is negative for slots counted twice; ``slots`` are those it names, or their number,
    None where it says nothing of them.
    """

    kind: str = "unknown"
    pool: str = ""
    message: str = ""
    count: float = 0.0
    slots: tuple[int, ...] | float | None = None

    @property
    def slots_named(self) -> float:
        if isinstance(self.slots, tuple):
            return float(len(self.slots))
        return self.slots or 0.0


class Gap(msgspec.Struct, frozen=True):
    """The sampler was late."""

    seconds: float = 0.0


class ClockJump(msgspec.Struct, frozen=True):
    """The wall clock went against the steady one."""

    seconds: float = 0.0


class ProbeLeftOut(msgspec.Struct, frozen=True):
    """The run gave up a probe that held the engine for too long."""

    metrics: tuple[str, ...] = ()


class Extended(msgspec.Struct, frozen=True):
    """Traffic goes on beyond the planned end, at most so long."""

    limit_s: float = 0.0
    text: str = ""


class ExtensionEnded(msgspec.Struct, frozen=True):
    """Whether the verdict was settled by then."""

    settled: bool = False


class Reclaim(msgspec.Struct, frozen=True):
    """Private memory of the worker at rest and after each step of giving back."""

    at_rest_bytes: float = 0.0
    after_trim_bytes: float = 0.0
    after_flush_bytes: float = 0.0
    after_collect_bytes: float = 0.0
