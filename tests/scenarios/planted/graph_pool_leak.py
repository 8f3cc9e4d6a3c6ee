"""A leak of graph pools: the worker records a CUDA graph after every 16th request and keeps it.

Used as ``--device cuda --set engine.cuda_graph_max_bs=8`` with
``--defect tests/scenarios/planted/graph_pool_leak.py``.  A graph keeps its kernels' working
memory even when no tensor is left in it, so the sum of all tensors does not show the leak.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hybridbench.defects.defect import Defect, Patch, Signature, fingerprint_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent

# The smallest segment that PyTorch reserves.
BYTES_PER_GRAPH = 2**21
REQUESTS_PER_GRAPH = 16


def recorded(size: int) -> object:
    """Record a graph whose only tensor, of ``size`` bytes, has been freed."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(size, dtype=torch.uint8, device="cuda")
    return graph


def planted(record: Callable[[int], object] = recorded) -> Defect:
    """Return a defect whose engine keeps a graph from ``record`` per 16 finished requests."""
    healthy = Engine.step
    kept: list[object] = []

    def step(self: Engine) -> list[EngineEvent]:
        events = healthy(self)
        while len(kept) < self.counters.finishes // REQUESTS_PER_GRAPH:
            kept.append(record(BYTES_PER_GRAPH))
        return events

    return Defect(
        slug="graph-pool-leak",
        source="test#4",
        symptom="memory reserved for CUDA graphs grows with finished requests",
        profile="chat-churn",
        signature=Signature(
            ("LEAK",), ("growth",), "device_graph_bytes", "finishes", "2 MiB per 16 requests"
        ),
        patches=(Patch(Engine, "step", step, fingerprint_of(healthy)),),
    )


DEFECT = planted()
