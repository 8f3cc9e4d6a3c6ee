"""Compare the decode steps of one engine: plain, as CUDA graphs, and with overlapped scheduling.

The three forms take turns, batch by batch, in one run.  As in ``kernel_watch.py``, times are wall
time on a CUDA device and the thread's CPU time on a CPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.batches import TRAFFIC, Batches, Traffic
from hybridbench.engine.assembly import device_of
from hybridbench.engine.engine import Engine
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.units import format_percent


@dataclass(frozen=True)
class Steps:
    """The decode steps of one batch in which all of its requests ran; median times."""

    count: int
    step_s: float
    beside_s: float
    """The part of ``step_s`` outside the model and sampling: the scheduler's time."""


@dataclass(frozen=True)
class DecodeBench:
    """The batches of each form, in the same order.

    Attributes:
        computes_beside: whether the device computes while the scheduler works.
        tokens: new tokens per step.
        plain: with default settings.
        graphs: recorded as CUDA graphs; empty on a CPU.
        overlapped: with overlapped scheduling and, on a CUDA device, graphs.
    """

    computes_beside: bool
    tokens: int
    plain: tuple[Steps, ...]
    graphs: tuple[Steps, ...]
    overlapped: tuple[Steps, ...]

    @property
    def in_order(self) -> tuple[Steps, ...]:
        """The steps that ``overlapped`` is compared with."""
        return self.graphs or self.plain

    @property
    def hidden(self) -> list[float]:
        """By batch: how much shorter overlapped steps are, as a share of the scheduler's time."""
        pairs = zip(self.in_order, self.overlapped, strict=True)
        return [(plain.step_s - other.step_s) / plain.beside_s for plain, other in pairs]


def bench_decode(
    model: str,
    device: str = "cpu",
    rounds: int = 5,
    traffic: Traffic | None = None,
    build: Callable[[EngineConfig], Engine] = Engine,
    *,
    graphs: bool | None = None,
) -> DecodeBench:
    """Time the decode steps of ``rounds`` batches in each form, after a warm-up batch.

    Args:
        model: a preset or the directory of a checkpoint.
        device: where the engines run.
        rounds: timed batches of each form.
        traffic: the batches; by default those of the device.
        build: makes an engine.
        graphs: whether to record CUDA graphs; by default on a CUDA device.

    Raises:
        ConfigError: there is no such device or model here.
    """
    target = device_of(device)
    computes_beside = target.type == "cuda"
    chosen = TRAFFIC[target.type] if traffic is None else traffic
    torch.set_num_threads(1)
    recorded = {"cuda_graph_max_bs": chosen.requests}
    with_graphs = recorded if (computes_beside if graphs is None else graphs) else {}
    forms: dict[str, dict[str, Any]] = {
        "plain": {},
        "graphs": with_graphs,
        "overlapped": {**with_graphs, "enable_overlap_schedule": True},
    }
    if not with_graphs:
        del forms["graphs"]
    engines = {
        name: Batches(model, device, chosen, build, **changes) for name, changes in forms.items()
    }
    timed: dict[str, list[Steps]] = {"plain": [], "graphs": [], "overlapped": []}
    for number in range(rounds + 1):
        for name, batches in engines.items():
            steps = _decode(batches, on_wall=computes_beside)
            if number:
                timed[name].append(steps)
    by_form = {name: tuple(steps) for name, steps in timed.items()}
    return DecodeBench(computes_beside, chosen.requests, **by_form)


def _decode(batches: Batches, *, on_wall: bool) -> Steps:
    """Serve one batch and time its decode steps."""
    batches.submit()
    engine, timings = batches.engine, batches.engine.pools.timings
    now_s = timings.now_s if on_wall else timings.cpu_s
    step_s, beside_s = [], []
    while engine.has_work:
        whole = engine.running_requests == batches.traffic.requests
        decoded = engine.counters.decode_steps
        began_s, before = now_s(), timings.seconds()
        engine.step()
        took_s, after = now_s() - began_s, timings.seconds()
        if whole and engine.counters.decode_steps > decoded:
            name = "forward_s" if on_wall else "forward_cpu_s"
            step_s.append(took_s)
            beside_s.append(took_s - (after[name] - before[name]))
    return Steps(len(step_s), statistics.median(step_s), statistics.median(beside_s))


def decode_lines(result: DecodeBench) -> Iterator[str]:
    """Yield the comparisons as sentences."""
    plain_ms = _median_ms(result.plain)
    steps = sum(each.count for each in result.plain)
    if result.graphs:
        graphs_ms = _median_ms(result.graphs)
        yield (
            f"decode step of {result.tokens} tokens as a CUDA graph: {graphs_ms:.2f} ms, without "
            f"{plain_ms:.2f} ms, ratio {plain_ms / graphs_ms:.2f} ({steps} steps)"
        )
    beside_ms = 1000 * statistics.median(each.beside_s for each in result.in_order)
    hidden = sorted(result.hidden)
    yield (
        f"decode steps, overlapped: {_median_ms(result.overlapped):.2f} ms, one after the other: "
        f"{_median_ms(result.in_order):.2f} ms"
    )
    yield (
        f"of the scheduler's {beside_ms:.2f} ms overlap hides "
        f"{format_percent(statistics.median(hidden))} ({format_percent(hidden[0])} to "
        f"{format_percent(hidden[-1])} over {len(hidden)} pairs of batches)"
    )
    if not result.computes_beside:
        yield "processor time; a CPU runs the model in the scheduler's thread, so nothing is hidden"


def _median_ms(steps: tuple[Steps, ...]) -> float:
    return 1000 * statistics.median(each.step_s for each in steps)
