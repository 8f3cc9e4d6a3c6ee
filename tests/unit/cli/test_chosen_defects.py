"""The settings that a chosen defect gives to a soak."""

from __future__ import annotations

import pytest

from hybridbench.cli.chosen_defects import chosen_defects
from hybridbench.workload.catalog import load_profile

pytestmark = pytest.mark.usefixtures("catalog_in_this_process")


def test_without_a_defect_nothing_is_set() -> None:
    assert chosen_defects([]).needs == {}
    assert chosen_defects([]).profile == ""


def test_the_model_that_a_defect_needs_is_a_setting_like_any_other() -> None:
    chosen = chosen_defects(["spec-tail-unrecorded"])

    assert chosen.profile == "draft-verify"
    assert chosen.needs["model"] == "attention-tiny"
    profile = load_profile(chosen.profile).with_overrides(dict(chosen.needs))
    assert (profile.model, profile.pools.page_size) == ("attention-tiny", 16)
    assert load_profile(chosen.profile).model != "attention-tiny"


def test_the_settings_of_a_defect_are_those_of_its_profile_whether_it_is_named_or_not() -> None:
    chosen = chosen_defects(["swa-stale-mapping"])

    own = load_profile("swa-churn").with_overrides(dict(chosen.needs))
    assert chosen.profile_with({}, None) == ("swa-churn", own)
    assert chosen.profile_with({}, "swa-churn") == ("swa-churn", own)
    assert chosen.profile_with({}, "chat-churn") == ("chat-churn", load_profile("chat-churn"))
    assert own != load_profile("swa-churn")


def test_a_defect_that_fits_its_profile_sets_nothing() -> None:
    assert chosen_defects(["mamba-adder-reject"]).needs == {}


def test_the_worker_is_told_the_rate_of_a_defect() -> None:
    chosen = chosen_defects(["unreleased-mappings@200MiB/h"])

    assert chosen.names == ("unreleased-mappings@200MiB/h",)
    assert chosen.profile == "chat-churn"
