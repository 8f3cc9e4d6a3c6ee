"""Payload draws: each one unique or one of a few, depending on the profile."""

from __future__ import annotations

import pytest

from hybridbench.foundation.errors import ConfigError
from hybridbench.records.messages import Submit
from hybridbench.workload.draws import REPEATED_PAYLOADS, PayloadDraws
from hybridbench.workload.rng_streams import stream
from hybridbench.workload.scenario import Scenario
from tests.unit.workload.profiles import base


def draws(overrides: dict[str, str], count: int = 400) -> list[tuple[int, int]]:
    profile = base().with_overrides(overrides)
    payloads = PayloadDraws(profile.prompts, stream(1, "payloads"))
    return [payloads.draw() for _ in range(count)]


def test_without_a_size_nothing_is_sent() -> None:
    assert set(draws({})) == {(0, 0)}


def test_every_payload_is_another_one_seed_1() -> None:
    drawn = draws({"prompts.payload": "2KiB"})

    assert {size for size, _ in drawn} == {2048}
    assert len({seed for _, seed in drawn}) == 400


def test_the_repeat_arm_sends_a_few_again_and_again_seed_1() -> None:
    half = draws({"prompts.payload": "1kB", "prompts.payload_repeat": "0.5"})
    seeds = [seed for _, seed in half]
    repeated = [seed for seed in seeds if seed < REPEATED_PAYLOADS]

    assert 160 < len(repeated) < 240
    assert set(repeated) == set(range(REPEATED_PAYLOADS))
    assert len(set(seeds)) == REPEATED_PAYLOADS + 400 - len(repeated)


def test_a_scenario_sends_them_with_its_requests() -> None:
    profile = base().with_overrides({"prompts.payload": "256KiB"})
    actions = [Scenario(profile, 100).next_action(0.0) for _ in range(2)]

    assert all(isinstance(a, Submit) and a.payload_bytes == 2**18 for a in actions)


@pytest.mark.parametrize("value", ["7", "true", "-1", "big", "1.5"])
def test_a_size_without_a_unit_is_one_sentence(value: str) -> None:
    with pytest.raises(ConfigError, match=r"prompts\.payload: .* is not a size; write"):
        base().with_overrides({"prompts.payload": value})
