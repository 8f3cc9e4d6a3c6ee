"""Find out how a worker was lost, and record that and its last messages in the run."""

from __future__ import annotations

import signal
from collections.abc import Callable

from hybridbench.foundation.clock import Clock
from hybridbench.records.events import Crash
from hybridbench.records.processes import signal_name
from hybridbench.runs.loop import WorkerLostError
from hybridbench.runs.recorder import Recorder
from hybridbench.sampling.headroom import oom_kills
from hybridbench.targets.target import ExitStatus, Observe

_STACK_PATIENCE_S = 1.0
_EXIT_PATIENCE_S = 5.0
_EXIT_MOST_S = 60.0
_POLL_S = 0.05


def record_crash(
    target: Observe,
    recorder: Recorder,
    clock: Clock,
    lost: WorkerLostError,
    oom_kills_before: int | None,
    dump_stack: Callable[[], None] | None = None,
) -> None:
    """Record the event ``crash``, and kill the worker if it still runs.

    ``dump_stack`` is for a target that can report where it hangs.
    """
    if lost.reason in ("unreachable", "silent"):
        # It is not ours to kill, and may be alive.
        ended = True
        reason, detail = lost.reason, lost.detail
    elif lost.reason == "hang":
        if dump_stack is not None:
            # The stack shows where it is stuck; the handler works even when Python does not.
            dump_stack()
            clock.sleep(_STACK_PATIENCE_S)
        ended = target.kill()
        reason, detail = "hang", lost.detail
    else:
        status = _wait_for_end(target, clock)
        ended = target.kill()
        reason, detail = _explain(status, lost.detail, oom_kills_before)
    detail = f"{detail}, {lost.during}" if lost.during else detail
    recorder.event(Crash(reason, detail, tuple(target.stderr_tail()), tuple(lost.stacks)))
    if not ended:
        recorder.note(unreaped_text(target.pid))


def unreaped_text(pid: int) -> str:
    """Describe a process that outlives SIGKILL, for the report."""
    return f"the worker (pid {pid}) was sent SIGKILL and has not ended"


def _wait_for_end(target: Observe, clock: Clock) -> ExitStatus | None:
    give_up_s, latest_s = (
        target.could_run_s() + _EXIT_PATIENCE_S,
        clock.monotonic_s() + _EXIT_MOST_S,
    )
    while (status := target.exit_status()) is None:
        if target.could_run_s() >= give_up_s or clock.monotonic_s() >= latest_s:
            break
        clock.sleep(_POLL_S)
    return status


def _explain(status: ExitStatus | None, said: str, oom_kills_before: int | None) -> tuple[str, str]:
    if status is None:
        stuck = "the process did not end and was killed"
        return "exit", f"{said}; {stuck}" if said else stuck
    if status.signal is None:
        return "exit", f"{said} (exit code {status.code})".lstrip()
    kills = oom_kills()
    if (
        status.signal == signal.SIGKILL
        and kills is not None
        and oom_kills_before is not None
        and kills > oom_kills_before
    ):
        return "oom", "the kernel killed the worker for lack of memory"
    return "signal", f"the worker was killed by {signal_name(status.signal)}"
