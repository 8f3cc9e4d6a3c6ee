"""The weekly plan tests every possible pair of engine settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import get_args

import pytest
import torch

from hybridbench.engine.assembly import check_against_model
from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.registry import resolve_model
from hybridbench.foundation.engine_config import (
    EngineConfig,
    HiCache,
    HiCacheStorage,
    HiCacheWritePolicy,
)
from hybridbench.foundation.errors import HybridbenchError
from hybridbench.over_time.planned import plan_run
from hybridbench.workload.catalog import load_profile

LEVELS = {
    "model": ("qwen3-next", "qwen3.5", "nemotron-h", "falcon-h1", "gpt-oss", "attention"),
    "cache": ("tree", "unified", "none"),
    "tier": ("none", "host", "storage"),
    "sessions": ("none", "some"),
    "states": ("no_buffer", "extra_buffer", "extra_buffer_lazy"),
    "steps": ("plain", "overlap", "drafts", "overlap and drafts"),
    "page": ("1", "16"),
}
Levels = Mapping[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


def model(name: str) -> ModelConfig:
    return resolve_model(f"{name}-tiny", torch.device("cpu")).config


def pairs(levels: Levels) -> set[Pair]:
    return set(itertools.combinations(sorted(levels.items()), 2))


def levels_of(config: EngineConfig, sessions: float) -> Levels:
    """Return the levels of a cell; a model without states has the level without buffers."""
    tier = "host" if config.hicache.ratio else "none"
    steps = {
        (False, False): "plain",
        (True, False): "overlap",
        (False, True): "drafts",
        (True, True): "overlap and drafts",
    }
    drafts = config.speculative_algorithm is not None
    return {
        "model": config.model.removesuffix("-tiny"),
        "cache": {"unified": "unified", "chunk": "none", "swa_chunk": "none"}.get(
            config.cache, "tree"
        ),
        "tier": "storage" if config.hicache_storage.ratio else tier,
        "sessions": "some" if sessions else "none",
        "states": config.mamba_scheduler_strategy,
        "steps": steps[config.enable_overlap_schedule, drafts],
        "page": str(config.page_size),
    }


def possible(models: Mapping[str, ModelConfig]) -> Iterator[Levels]:
    """Yield all combinations that the engine accepts, except buffers without states to save."""
    for values in itertools.product(*LEVELS.values()):
        levels = dict(zip(LEVELS, values, strict=True))
        config = models[levels["model"]]
        has_states, has_windows = bool(config.linear_layer_ids), bool(config.swa_layer_ids)
        saves = has_states and levels["cache"] != "none"
        if levels["states"] != "no_buffer" and not saves:
            continue
        caches = {"tree": "swa" if has_windows else "radix", "unified": "unified"}
        none = "swa_chunk" if has_windows else "chunk"
        try:
            settings = EngineConfig(
                page_size=int(levels["page"]),
                cache=caches.get(levels["cache"], none),  # type: ignore[arg-type]
                mamba_scheduler_strategy=levels["states"],  # type: ignore[arg-type]
                hicache=HiCache(ratio=float(levels["tier"] != "none")),
                hicache_storage=HiCacheStorage(ratio=float(levels["tier"] == "storage")),
            )
            check_against_model(settings, config)
        except HybridbenchError:
            continue
        yield levels


@pytest.fixture(scope="module")
def planned() -> list[tuple[EngineConfig, float]]:
    """Return each soak's engine and its share of sessions."""
    those = []
    for cell in (one.cell for one in plan_run("weekly").cells):
        if cell.kind == "soak":
            profile = load_profile(cell.profile).with_overrides(cell.settings)
            config = profile.engine_config(model=cell.model, device="cpu")
            those.append((config, profile.sessions.share))
    return those


def test_each_pair_that_the_engine_allows_is_in_a_cell(
    planned: list[tuple[EngineConfig, float]],
) -> None:
    models = {name: model(name) for name in LEVELS["model"]}
    missing = set().union(*map(pairs, possible(models)))
    for config, sessions in planned:
        check_against_model(config, models[config.model.removesuffix("-tiny")])
        missing -= pairs(levels_of(config, sessions))

    assert missing == set()


def test_either_tree_has_each_write_policy(planned: list[tuple[EngineConfig, float]]) -> None:
    tried = {
        (config.cache == "unified", config.hicache.write_policy)
        for config, _ in planned
        if config.hicache.ratio
    }

    assert tried == set(itertools.product((False, True), get_args(HiCacheWritePolicy)))


def test_what_is_possible_has_each_level_and_not_each_pair() -> None:
    models = {name: model(name) for name in LEVELS["model"]}

    wanted = set().union(*map(pairs, possible(models)))

    assert {one for pair in wanted for one in pair} == {
        (name, level) for name, levels in LEVELS.items() for level in levels
    }
    assert (("cache", "none"), ("tier", "host")) not in wanted
    assert (("model", "qwen3-next"), ("page", "16")) in wanted
