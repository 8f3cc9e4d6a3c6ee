from __future__ import annotations

import pytest

from hybridbench.errors import ConfigError
from hybridbench.runs.demands import check_takes
from hybridbench.targets.target import Capability
from hybridbench.workload.catalog import list_profiles, load_profile


@pytest.mark.parametrize("name", list_profiles())
def test_the_bundled_engine_takes_every_shipped_profile(name: str) -> None:
    check_takes(load_profile(name), Capability)


@pytest.mark.parametrize(
    ("profile", "lacking", "key"),
    [
        ("session-churn", Capability.SESSIONS, "sessions"),
        ("session-abort", Capability.ABORT, "aborts"),
        ("disconnect", Capability.DISCONNECT, "aborts.disconnect"),
        ("smoke", Capability.TRAFFIC, "arrival"),
        ("smoke", Capability.DRAIN, "checkpoint"),
    ],
)
def test_traffic_that_an_engine_does_not_take_is_refused_by_the_key_that_asks_for_it(
    profile: str, lacking: Capability, key: str
) -> None:
    able = [capability for capability in Capability if capability is not lacking]

    with pytest.raises(ConfigError, match=f"profile {profile}: {key} needs .* takes {lacking},"):
        check_takes(load_profile(profile), able)


def test_a_flush_at_each_rest_is_a_demand_as_well() -> None:
    profile = load_profile("smoke").with_overrides({"checkpoint.flush": "true"})
    able = [capability for capability in Capability if capability is not Capability.FLUSH]

    check_takes(load_profile("smoke"), able)
    with pytest.raises(ConfigError, match=r"checkpoint\.flush needs an engine that takes flush"):
        check_takes(profile, able)


def test_an_engine_need_not_take_what_nobody_sends() -> None:
    check_takes(
        load_profile("pr25770-ramp"), [Capability.TRAFFIC, Capability.DRAIN, Capability.FLUSH]
    )
