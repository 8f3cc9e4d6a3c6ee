"""Bringing a worker up: tell it what to build, wait until it says that it is ready."""

from __future__ import annotations

from hybridbench.clock import Clock
from hybridbench.errors import ConfigError
from hybridbench.runs.demands import check_takes
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.loop import WorkerLostError
from hybridbench.runs.plan import SoakPlan
from hybridbench.targets.messages import Fatal, Ready
from hybridbench.targets.target import Target
from hybridbench.targets.wire import WireClosedError

_TURN_S = 0.25


def boot_worker(
    target: Target, plan: SoakPlan, clock: Clock, interrupts: Interrupts
) -> Ready | None:
    """Tell the worker what the plan says, and await its first word.

    Raises: as ``await_ready`` does.
    """
    target.post(plan.start_message())
    return await_ready(target, plan, clock, interrupts)


def await_ready(
    target: Target, plan: SoakPlan, clock: Clock, interrupts: Interrupts
) -> Ready | None:
    """The first word of a worker that was told what to build; None when somebody asked for the end
    meanwhile.

    Raises:
        ConfigError: what was asked for cannot be built, in the worker's own sentence, or its engine
            does not take the profile's traffic.
        WorkerLostError: it died, or was not ready in time.
        WorkerFailedError: it speaks another version of the wire.
    """
    limit_s = clock.monotonic_s() + plan.boot_limit_s
    while interrupts.first is None:
        if clock.monotonic_s() > limit_s:
            raise WorkerLostError("hang", f"the worker was not ready in {plan.boot_limit_s:.0f} s")
        try:
            messages = target.exchange(_TURN_S)
        except WireClosedError as error:
            raise WorkerLostError("exit", "the worker ended while it built the engine") from error
        for message in messages:
            if isinstance(message, Ready):
                check_takes(plan.profile, message.capabilities)
                return message
            if isinstance(message, Fatal) and message.usage:
                raise ConfigError(message.message)
            if isinstance(message, Fatal):
                raise WorkerLostError("exit", message.message)
    return None
