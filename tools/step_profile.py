"""Profile a prefill and a decode step with PyTorch's profiler, to see how a device spends its time.

``python -m benchmarks kernels`` shows how fast each operation is; this shows what else runs on the
device, and how long the device waits for the host.  ``make gpu`` includes the result in its page.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.batches import TRAFFIC, Batches, Traffic
from benchmarks.kernels import PHASES
from hybridbench.engine.engine import Engine

ROUNDS = 3
ROWS = 8


class Named(Protocol):
    """A member of an enumeration."""

    name: str


class ProfiledEvents(Protocol):
    """One row of the profiler's averages."""

    key: str
    count: int
    device_type: Named
    is_user_annotation: bool
    self_device_time_total: float
    self_cpu_time_total: float


@dataclass(frozen=True)
class TimedStep:
    """A step in which a model ran."""

    phase: str
    tokens: int
    step_ms: float


@dataclass(frozen=True)
class Share:
    """All calls of one name in a step."""

    name: str
    calls: int
    ms: float

    @property
    def waits(self) -> bool:
        """Whether this is time in which the host waits for the device."""
        return "Synchronize" in self.name


@dataclass(frozen=True)
class StepProfile:
    """The profile of one step.

    Attributes:
        step_ms: median without the profiler, which slows the host.
        kernels: on the device, longest first; empty on a CPU.
        host: calls to PyTorch and CUDA with their self time on the host, under the profiler.
    """

    phase: str
    tokens: int
    step_ms: float
    kernels: tuple[Share, ...]
    host: tuple[Share, ...]


def profile_steps(
    model: str, device: str, traffic: Traffic, rounds: int = ROUNDS
) -> list[StepProfile]:
    """Profile the first of the largest prefill steps, and the middle one of the decode steps."""
    torch.set_num_threads(1)
    batches = Batches(model, device, traffic)
    # A batch depends only on its lengths, so the n-th steps of all batches are the same.
    _serve(batches, device)
    timed = [_serve(batches, device) for _ in range(rounds)]
    found = []
    for phase in PHASES:
        number = _largest(timed[0], phase)
        step_ms = statistics.median(batch[number].step_ms for batch in timed)
        # The profiler's own first step is slow.
        _profiled(batches, device, number)
        events = _profiled(batches, device, number)
        tokens = timed[0][number].tokens
        found.append(StepProfile(phase, tokens, step_ms, _kernels(events), _host(events)))
    return found


def lines(found: Sequence[StepProfile]) -> Iterator[str]:
    """A table for each step, as text."""
    for step in found:
        yield f"{step.phase} step of {step.tokens} tokens: {step.step_ms:.2f} ms"
        if step.kernels:
            busy_ms = sum(share.ms for share in step.kernels)
            calls = sum(share.calls for share in step.kernels)
            yield (
                f"the device works for {busy_ms:.2f} ms of them ({busy_ms / step.step_ms:.0%}), "
                f"in {calls} kernels and copies"
            )
            yield from _table("on the device", step.kernels)
        calls = sum(share.calls for share in step.host)
        busy_ms = sum(share.ms for share in step.host if not share.waits)
        waits_ms = sum(share.ms for share in step.host if share.waits)
        yield (
            f"the host, slowed by the profiler, spends {busy_ms:.2f} ms in {calls} calls of "
            f"PyTorch and CUDA, and {waits_ms:.2f} ms waiting for the device"
        )
        yield from _table("on the host, without the calls within", step.host)
        yield ""


def _table(title: str, shares: Sequence[Share]) -> Iterator[str]:
    total_ms = sum(share.ms for share in shares)
    yield f"  {title:58}{'calls':>6}{'ms':>9}{'share':>7}"
    for share in shares[:ROWS]:
        yield (f"  {share.name[:57]:58}{share.calls:6}{share.ms:9.3f}{share.ms / total_ms:>7.0%}")


def _serve(batches: Batches, device: str) -> list[TimedStep]:
    """Serve one batch to its end; time its steps, including the device's work."""
    batches.submit()
    steps = []
    while batches.engine.has_work:
        step = _timed(batches.engine, device)
        if step is not None:
            steps.append(step)
    return steps


def _timed(engine: Engine, device: str) -> TimedStep | None:
    counters = engine.counters
    prompt, output = counters.prompt_tokens, counters.output_tokens
    _wait_for(device)
    began_s = time.perf_counter()
    engine.step()
    _wait_for(device)
    step_ms = 1000 * (time.perf_counter() - began_s)
    if counters.prompt_tokens > prompt:
        return TimedStep("prefill", counters.prompt_tokens - prompt, step_ms)
    if counters.output_tokens > output:
        return TimedStep("decode", counters.output_tokens - output, step_ms)
    return None


def _largest(steps: Sequence[TimedStep], phase: str) -> int:
    most = max(step.tokens for step in steps if step.phase == phase)
    largest = [i for i, step in enumerate(steps) if (step.phase, step.tokens) == (phase, most)]
    return largest[0] if phase == "prefill" else largest[len(largest) // 2]


def _profiled(batches: Batches, device: str, number: int) -> Sequence[ProfiledEvents]:
    """Serve a batch; return the profile of step ``number``, not counting empty steps."""
    engine, seen = batches.engine, 0
    events: Sequence[ProfiledEvents] | None = None
    batches.submit()
    while engine.has_work:
        if seen != number:
            seen += _timed(engine, device) is not None
            continue
        activities = [ProfilerActivity.CPU]
        if device != "cpu":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as profiler:
            seen += _timed(engine, device) is not None
        events = profiler.key_averages()
    assert events is not None
    return events


def _kernels(events: Sequence[ProfiledEvents]) -> tuple[Share, ...]:
    return _longest(
        Share(event.key, event.count, event.self_device_time_total / 1000)
        for event in events
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    )


def _host(events: Sequence[ProfiledEvents]) -> tuple[Share, ...]:
    return _longest(
        Share(event.key, event.count, event.self_cpu_time_total / 1000)
        for event in events
        if event.device_type.name == "CPU"
    )


def _longest(shares: Iterator[Share]) -> tuple[Share, ...]:
    return tuple(sorted((share for share in shares if share.ms), key=lambda share: -share.ms))


def _wait_for(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def given_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-next-1b")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    return parser.parse_args(arguments)


def main() -> None:
    """Print the tables of one model."""
    given = given_options()
    for line in lines(profile_steps(given.model, given.device, TRAFFIC[given.device])):
        print(line)


if __name__ == "__main__":
    main()
