"""Every defect and control can be explained, with a command that shows it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.defects.catalog import CONTROLS, DEFECTS, PLANTED
from hybridbench.defects.defect import Defect, FoundBy
from hybridbench.defects.described import described
from hybridbench.foundation.errors import UsageError

BY_SOAK = [d for d in (*DEFECTS, *CONTROLS) if d.signature.found_by is FoundBy.SOAK]
BY_COMPARISON = [*PLANTED, *(d for d in DEFECTS if d.signature.found_by is FoundBy.COMPARE)]


@pytest.mark.parametrize("defect", BY_SOAK, ids=lambda defect: defect.slug)
def test_a_story_names_its_source_its_verdict_and_how_to_see_it(defect: Defect) -> None:
    result = CliRunner().invoke(app, ["explain", defect.slug])

    assert result.exit_code == 0, result.output
    (command,) = [line for line in result.output.splitlines() if "hybridbench soak" in line]
    assert f"--profile {defect.profile} --defect {defect.slug}" in command
    assert defect.source in result.output
    assert defect.signature.verdicts[0] in result.output


@pytest.mark.parametrize("defect", BY_COMPARISON, ids=lambda defect: defect.slug)
def test_what_a_soak_cannot_find_is_shown_by_a_comparison(defect: Defect) -> None:
    result = CliRunner().invoke(app, ["explain", defect.slug])

    assert result.exit_code == 0, result.output
    assert f"hybridbench compare . defect:{defect.slug}" in result.output


def test_how_a_defect_is_found_follows_from_the_finding_that_it_must_cause() -> None:
    said = {
        defect.slug: "an exact check" in CliRunner().invoke(app, ["explain", defect.slug]).output
        for defect in DEFECTS
    }

    # Growth, slowdowns and missed limits are found by a fit or an interval, not exactly.
    assert {slug for slug, exact in said.items() if not exact} == {
        "rid-state-orphan",
        "undrained-recorder",
        "deferred-close-orphan",
        "hicache-view-retention",
        "state-row-view",
        "unreleased-mappings",
        "pinned-receive-buffers",
        "evict-heap-rebuild",
        "idle-sanity-walk",
        "whole-chain-lru-refresh",
    }


def test_the_list_names_every_defect_and_control() -> None:
    output = CliRunner().invoke(app, ["list", "defects"]).output

    assert all(defect.slug in output for defect in (*DEFECTS, *CONTROLS, *PLANTED))


def test_a_wrong_slug_is_met_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"explain cache-fil: .* did you mean cache-fill"):
        CliRunner().invoke(app, ["explain", "cache-fil"], catch_exceptions=False)


def test_a_part_of_a_slug_is_met_with_those_that_have_it() -> None:
    with pytest.raises(UsageError, match="did you mean hicache-view-retention or hicache-unp"):
        CliRunner().invoke(app, ["explain", "hicache"], catch_exceptions=False)


@pytest.mark.parametrize("name", ["sglang#25770", "#25770", "25770"])
def test_the_number_of_an_issue_is_met_with_its_defect(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        described(name)

    assert "no such defect; did you mean lru-reference-cycle or " in str(caught.value)


def test_the_number_of_another_project_is_no_defect() -> None:
    with pytest.raises(UsageError, match="no such defect; `hybridbench list defects` lists them"):
        described("vllm#25770")
