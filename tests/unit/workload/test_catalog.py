from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hybridbench
from hybridbench.foundation.errors import ConfigError
from hybridbench.workload.catalog import (
    DEFAULT_PROFILE,
    list_plans,
    list_profiles,
    load_profile,
    profiles_dir,
)
from tests.unit.workload.profiles import BASE

FOLDER = Path(__file__).parents[3] / "profiles"
PLANS = {"nightly", "weekly"}
SHIPPED = sorted({path.stem for path in FOLDER.glob("*.yaml")} - PLANS)
# Profiles whose clients do not wait for answers.
OPEN_LOOP = {"host-pool-fill", "bad-input", "mamba-churn", "pr25770-ramp"}


def test_the_shipped_profiles_are_found_by_name() -> None:
    assert list(list_profiles()) == SHIPPED
    assert {"admission-squeeze", "chat-churn", "smoke", "steady-decode"} <= set(SHIPPED)
    assert DEFAULT_PROFILE in SHIPPED

    for name in SHIPPED:
        assert load_profile(name).name == name


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_says_its_purpose_and_asserts_coverage(name: str) -> None:
    profile = load_profile(name)

    assert list_profiles()[name].read_text(encoding="utf-8").startswith("# ")
    assert profile.description
    assert profile.coverage_minimums(60)
    assert profile.arrival.process == ("poisson" if name in OPEN_LOOP else "closed")


def test_nightly_plans_are_stored_with_the_profiles_but_are_not_profiles() -> None:
    assert set(list_plans()) == PLANS
    with pytest.raises(ConfigError, match="there is no profile 'nightly'"):
        load_profile("nightly")


def test_every_profile_excludes_a_gigabyte_an_hour_at_every_length_that_has_a_limit() -> None:
    for name in list_profiles():
        limits = [entry.rss_bytes_per_h for entry in load_profile(name).limits]
        known = [limit for limit in limits if limit is not None]
        assert known, name
        assert max(known) <= 0.9e9, name
        # Limits never get looser as runs get longer.
        assert known == sorted(known, reverse=True), name


def test_smoke_has_a_limit_at_its_own_length() -> None:
    smoke = load_profile("smoke")

    assert smoke.limits_as_planned(smoke.duration_s).rss_bytes_per_h is not None
    assert smoke.limits_as_planned(60.0).rss_bytes_per_h is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("chat-chrn", "did you mean chat-churn?"),
        ("xyz", f"choose one of {', '.join(SHIPPED)}."),
    ],
)
def test_an_unknown_name_gets_the_nearest_or_the_shipped_ones(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile(name)

    assert str(caught.value) == f"there is no profile {name!r}; {hint}"


def test_a_missing_path_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^./xyz.yaml: there is no such file; choose one of "):
        load_profile("./xyz.yaml")


def test_a_missing_path_with_the_name_of_a_shipped_profile_suggests_it() -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile("elsewhere/chat-churn.yaml")

    said = "elsewhere/chat-churn.yaml: there is no such file; did you mean chat-churn?"
    assert str(caught.value) == said


def test_a_file_is_loaded_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BASE)

    assert load_profile(str(path)).name == "test"
    assert load_profile(path).name == "test"


def test_an_installed_package_finds_the_profiles_inside_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "hybridbench"
    shutil.copytree(profiles_dir(), package / "profiles")
    monkeypatch.setattr(hybridbench, "__file__", str(package / "__init__.py"))

    assert profiles_dir() == package / "profiles"
    assert load_profile("smoke").name == "smoke"


def test_an_installation_without_profiles_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hybridbench, "__file__", str(tmp_path / "hybridbench" / "__init__.py"))

    with pytest.raises(ConfigError, match="the shipped profiles are missing; reinstall"):
        list_profiles()
