"""The worker shrinks the pools to fit into free memory."""

from __future__ import annotations

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.sampling.headroom import Headroom
from hybridbench.worker import free_memory
from hybridbench.worker.free_memory import fit_pools

CONFIG = EngineConfig(model="falcon-h1", kv_tokens=1024, mamba_slots=64, max_context_len=128)


def leave(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """Make the machine report ``free_bytes`` of free memory."""
    room = Headroom(free_bytes, free_bytes, "machine")
    monkeypatch.setattr(free_memory, "memory_headroom", lambda: room)


def test_an_engine_runs_with_the_pools_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, 12 * 2**20)

    config, note = fit_pools(CONFIG)
    engine = Engine(config)

    sizes = {name: stats.total for name, stats in engine.pool_stats().items()}
    assert 2 <= sizes["mamba"] < 64
    assert 128 < config.kv_tokens < 1024
    assert str(sizes["mamba"]) in note
    assert engine.generate([[1, 2, 3]], SamplingParams(max_new_tokens=4, ignore_eos=True))


def test_enough_memory_changes_nothing_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, 2**30)

    assert fit_pools(CONFIG) == (CONFIG, "")


def test_pools_are_unchanged_if_free_memory_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(free_memory, "memory_headroom", lambda: None)

    assert fit_pools(CONFIG) == (CONFIG, "")
