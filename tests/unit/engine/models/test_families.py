"""Families other than Qwen3-Next: neither batches nor prefix reuse change a result."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch

from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.falcon_h1 import FalconH1Config, Multipliers, hybrid_layers
from hybridbench.engine.models.gpt_oss import GptOssConfig, alternating
from hybridbench.engine.models.nemotron_h import NemotronHConfig, pattern
from hybridbench.engine.models.presets import PRESETS
from hybridbench.engine.models.registry import Model, build_model
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import assert_idle_and_clean, make_engine
from tests.drafters import HalfRightDrafter
from tests.engine_programs import EngineProgram
from tests.model_steps import Stepper
from tests.session_programs import SessionProgram

FAMILIES: dict[str, ModelConfig] = {
    # The windows are much shorter than the prompts, so that most positions lie outside them.
    "gpt-oss": replace(
        cast("GptOssConfig", PRESETS["gpt-oss-tiny"]),
        vocab_size=48,
        hidden_size=16,
        layer_types=alternating(3),
        num_attention_heads=4,
        head_dim=8,
        sliding_window=5,
        num_local_experts=4,
        intermediate_size=8,
    ),
    "nemotron-h": replace(
        cast("NemotronHConfig", PRESETS["nemotron-h-tiny"]),
        vocab_size=48,
        hidden_size=16,
        layer_types=pattern("M*E"),
        head_dim=8,
        mamba_num_heads=4,
        mamba_head_dim=4,
        ssm_state_size=6,
        n_routed_experts=4,
        moe_intermediate_size=8,
        moe_shared_expert_intermediate_size=8,
    ),
    "falcon-h1": replace(
        cast("FalconH1Config", PRESETS["falcon-h1-tiny"]),
        vocab_size=48,
        hidden_size=16,
        layer_types=hybrid_layers(2),
        head_dim=8,
        intermediate_size=24,
        mamba_n_groups=2,
        mamba_d_head=4,
        mamba_d_state=6,
        multipliers=Multipliers(embedding=2.0, key=0.5, ssm=(0.4, 0.5, 1.2, 0.8, 0.35)),
    ),
}
AHEAD = "overlap, drafts and sessions"


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    return build_model(FAMILIES[request.param], torch.float64, "cpu", seed=4)


def test_a_request_does_not_feel_who_shares_its_batch(model: Model) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 48, length).tolist() for length in (70, 1, 33, 130, 5)]
    together, alone = Stepper(model, seed=1), Stepper(model, seed=2)
    requests, own = [together.start() for _ in texts], alone.start()

    crowd = [together.extend(requests, texts)[2]]
    single = [alone.extend([own], [texts[2]])[0]]
    for token in (3, 1, 4):
        crowd.append(together.decode(requests, [token] * 5)[2])
        single.append(alone.decode([own], [token])[0])

    torch.testing.assert_close(torch.stack(crowd), torch.stack(single), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mechanisms", ["plain", AHEAD, "track buffers", "pages"])
def test_an_engine_that_reuses_prefixes_gives_the_tokens_of_one_that_does_not(
    model: Model, mechanisms: str
) -> None:
    recurrent = bool(model.config.linear_layer_ids)
    if mechanisms == "track buffers" and not recurrent:
        pytest.skip("this family keeps no states")
    ahead, tracks = mechanisms == AHEAD, mechanisms in {"track buffers", "pages"} and recurrent
    changes: dict[str, Any] = {"kv_tokens": 160}
    if mechanisms == "pages":
        changes = {"kv_tokens": 352, "page_size": 16}
    if tracks:
        changes |= {
            "mamba_scheduler_strategy": "extra_buffer",
            "mamba_slots": 26,
            "mamba_cache_chunk_size": 16,
            "mamba_track_interval": 16,
        }
    clock = FakeClock()
    build = partial(make_engine, model=model, max_context_len=352)
    engine = build(
        clock=clock,
        drafter=HalfRightDrafter(48) if ahead else None,
        max_prefill_tokens=256,
        enable_overlap_schedule=ahead,
        new_token_ratio=NewTokenRatio(init=0.3, min=0.0, decay_steps=1),
        **changes,
    )
    program: EngineProgram
    if ahead:
        program = SessionProgram(engine, random.Random(3), clock, 60)
        program._make_oracle = build
    else:
        program = EngineProgram(
            engine, random.Random(3), longest_prompt=60, longest_output=14, make_oracle=build
        )

    program.run(75)
    program.compare_with_oracle()

    assert engine.flush_cache()
    assert_idle_and_clean(engine)
    counters = engine.counters
    assert counters.finishes > 5
    assert counters.prefix_hits > 0
    assert counters.nodes_evicted > 0
    assert not tracks or counters.states_tracked > 0
    assert not ahead or counters.drafts_accepted > 0
    assert not ahead or counters.session_restores > 0


def test_a_verifying_step_gives_the_logits_of_one_decode_after_the_other() -> None:
    """For a model without states; tests/laws covers those with states, by comparing tokens."""
    model = build_model(FAMILIES["gpt-oss"], torch.float64, "cpu", seed=4)
    prompts, chains = [[1, 2, 3, 4, 5, 6, 7, 8], [7]], [[11, 12, 13, 14], [3, 9]]
    stepper, other = Stepper(model, seed=1), Stepper(model, seed=1)
    requests = [stepper.start() for _ in prompts]
    others = [other.start() for _ in prompts]
    stepper.extend(requests, prompts)
    other.extend(others, prompts)
    expected = [
        other.decode([request], [token])[0]
        for request, chain in zip(others, chains, strict=True)
        for token in chain
    ]

    logits = stepper.model.forward(stepper.batch("verify", requests, chains), stepper.kv_pool)

    torch.testing.assert_close(logits, torch.stack(expected), rtol=0, atol=1e-12)
