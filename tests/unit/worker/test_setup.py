from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool
from hybridbench.engine.models.export import write_checkpoint
from hybridbench.engine.models.registry import resolve_model
from hybridbench.engine.models.weights import RandomWeights
from hybridbench.foundation.engine_config import EngineConfig, HiCache, NewTokenRatio
from hybridbench.foundation.errors import ConfigError
from hybridbench.foundation.metrics import METRICS, spec_of
from hybridbench.records.messages import Start
from hybridbench.targets.engine_files import imported_engine_files
from hybridbench.worker import first_touch
from hybridbench.worker.first_touch import touch_largest_shapes
from hybridbench.worker.metrics import DECLARED_FAMILIES
from hybridbench.worker.pool_memory import pool_ranges
from hybridbench.worker.setup import build_engine, engine_config, model_note
from tests.model_steps import NANO_MODEL
from tests.unit.runs.soaks import make_plan
from tests.unit.worker.engines import make_engine


def test_a_plan_becomes_the_engines_configuration() -> None:
    config = engine_config(
        make_plan(settings={"engine.new_token_ratio.init": "0.5"}).start_message()
    )

    assert isinstance(config, EngineConfig)
    assert config.model == "qwen3-next"
    assert config.kv_tokens == make_plan().profile.pools.kv_tokens
    assert config.new_token_ratio == NewTokenRatio(init=0.5)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"kv_tokens": "many"}, "Expected `int`"),
        ({"kv_token": 5}, "no setting kv_token"),
        ({"kv_tokens": 1}, "kv_tokens is 1"),
    ],
)
def test_an_invalid_engine_setting_is_reported_in_one_sentence(
    engine: dict[str, str | int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        engine_config(Start(engine={**engine}))


@pytest.mark.parametrize("setting", ["kv_tokens", "mamba_slots"])
def test_pools_that_no_memory_can_hold_are_one_sentence(setting: str) -> None:
    # More bytes than a process can address, so the allocation fails on any machine.
    config = EngineConfig(**{"model": "qwen3-next-nano", setting: 2**50})  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"not enough memory to build it; make pools\.kv_tokens"):
        build_engine(config)


def test_the_note_tells_a_checkpoint_from_the_preset_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "gpt-oss-1b"):
        Path(name).mkdir()
        write_checkpoint(NANO_MODEL, RandomWeights(NANO_MODEL, 0, torch.device("cpu")), Path(name))

    def note(name: str) -> str:
        return model_note(EngineConfig(model=name), resolve_model(name, "cpu"))

    assert note("mine").startswith("weights from mine: qwen3_next, 11.3 k parameters, 2 linear")
    assert note("./gpt-oss-1b").startswith("weights from ./gpt-oss-1b: qwen3_next, ")
    assert note("gpt-oss-1b").startswith("preset gpt-oss-1b with random weights of seed ")
    assert note("gpt-oss-1b").endswith("; for the directory of that name write ./gpt-oss-1b")
    assert "write ./" not in note("gpt-oss-tiny")


def test_first_touches_reach_the_limits_and_leave_an_empty_idle_engine() -> None:
    engine = make_engine()
    touched = touch_largest_shapes(engine)
    stats = engine.pool_stats()

    assert touched == engine.counters.as_dict()
    assert touched["prefill_chunks"] >= 1, "one prompt took more than one step"
    assert engine.max_running_requests_seen == engine.config.max_running_requests
    assert engine.containers()["step_shapes"] >= 7, "lengths and batch sizes were mixed"
    assert engine.is_idle
    assert all(pool.available == pool.total for pool in stats.values())


def test_an_engine_that_never_becomes_idle_is_left_to_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Engine, "has_work", True)
    monkeypatch.setattr(first_touch, "_PATIENCE_S", 0.0)

    touched = touch_largest_shapes(make_engine())

    assert touched["finishes"] == touched["requests_submitted"] > 0


def test_the_pools_are_found_and_nothing_small_is() -> None:
    engine = make_engine(kv_tokens=4096, mamba_slots=64)
    ranges = pool_ranges(engine.pools)
    rows = engine.pools.req_to_token_pool
    assert isinstance(rows, HybridReqToTokenPool)
    pool = rows.mamba_pool
    state = pool.mamba_cache.temporal
    storage = state.untyped_storage()

    assert any(part.overlaps(storage.data_ptr(), storage.nbytes()) for part in ranges)
    assert sum(part.size_bytes for part in ranges) >= pool.mem_usage_bytes()
    assert min(part.size_bytes for part in ranges) >= 256 * 1024
    assert len({part.address for part in ranges}) == len(ranges)


def test_the_hash_of_the_engine_files_is_that_of_what_was_imported() -> None:
    digest, files = imported_engine_files()

    assert (digest, files) == imported_engine_files()
    assert len(digest) == 64
    assert files > 20


def test_every_family_the_worker_claims_is_declared() -> None:
    names = {spec.name for spec in METRICS}
    for family in DECLARED_FAMILIES:
        prefix = family.removesuffix("*")
        assert spec_of(family) or any(name.startswith(prefix) for name in names), family


def test_a_flush_with_a_host_tier_leaves_nothing_to_the_collector() -> None:
    engine = make_engine(hicache=HiCache(ratio=1.0), cache="radix")
    gc.collect()
    gc.disable()
    try:
        touch_largest_shapes(engine)
        assert engine.flush_cache()
        assert gc.collect() == 0
    finally:
        gc.enable()
