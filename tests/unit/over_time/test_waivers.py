"""Waivers: by signature, up to a rate, until a date; they hide nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from hybridbench.over_time.policy import Rules
from hybridbench.records.finding import VerdictKind
from hybridbench.records.nightly import (
    AttemptFinding,
    Cell,
    CellKind,
    MaxRate,
    Policy,
    Waiver,
    parse_max_rate,
)
from tests.unit.over_time.planned_runs import GROWTH, NODES, attempt

TODAY = date(2026, 11, 20)
KNOWN = Waiver(
    kind="instances-wait-for-collector",
    subject="TreeNode",
    driver="nodes_*",
    max_rate="0.9 nodes/evicted node",
    expires=TODAY,
    link="tracker/1",
    reason="known",
)
LEAK = NODES
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def rules(waiver: Waiver) -> Rules:
    cell = Cell(
        id="one",
        kind=CellKind.SOAK,
        profile="chat-churn",
        model="qwen3-next",
        versions=(".",),
        seed=1,
        duration_s=1800.0,
    )
    return Rules(cell, Policy(), (waiver,))


def waived(finding: AttemptFinding, waiver: Waiver = KNOWN, days: int = 0) -> str:
    """Return why the finding is not waived; empty if it is."""
    ended = attempt("LEAK", finding, started_wall_s=(NOON + timedelta(days)).timestamp())
    (entry,) = rules(waiver).judged(ended)
    return "" if entry.waived else entry.why_not or "not named"


@pytest.mark.parametrize("subject", ["app.kept[][]", "app.*[][]", "*[][]"])
def test_the_brackets_of_a_nested_container_are_not_special(subject: str) -> None:
    nested = replace(LEAK, subject="app.kept[][]")

    assert waived(nested, replace(KNOWN, subject=subject)) == ""
    assert waived(replace(LEAK, subject="app.keptx"), replace(KNOWN, subject=subject))


def test_a_known_finding_is_waived_to_the_end_of_its_day() -> None:
    assert waived(LEAK) == ""
    assert "expired on 2026-11-20 (tracker/1)" in waived(LEAK, days=1)


def test_a_faster_one_is_not() -> None:
    (rate,) = LEAK.rates

    assert "grows faster" in waived(replace(LEAK, rates=(replace(rate, value=0.91),)))
    assert "no such rate" in waived(replace(LEAK, rates=(replace(rate, per="request"),)))


def test_a_waiver_of_dead_instances_holds_whichever_of_the_two_most_of_them_do() -> None:
    assert waived(replace(LEAK, kind="instances-retained")) == waived(LEAK)


@pytest.mark.parametrize(
    "other",
    [
        replace(LEAK, kind="held-at-idle"),
        replace(LEAK, subject="Req"),
        replace(LEAK, driver="retracts"),
        replace(LEAK, driver=None),
    ],
    ids=["kind", "subject", "driver", "no driver"],
)
def test_another_signature_is_another_finding(other: AttemptFinding) -> None:
    assert waived(other) == "not named"


def test_a_waiver_may_be_of_one_profile_or_model_only() -> None:
    assert waived(LEAK, replace(KNOWN, profile="chat-*", model="qwen3-next")) == ""
    assert waived(LEAK, replace(KNOWN, profile="smoke")) == "not named"
    assert waived(LEAK, replace(KNOWN, model="other")) == "not named"


def test_a_growth_that_is_waived_may_stay_undecided_below_its_rate() -> None:
    growth = GROWTH
    of_growth = replace(
        KNOWN, kind="growth", subject=growth.subject, driver="finishes", max_rate="2GiB/h"
    )
    (rate,) = growth.rates
    open_ = replace(
        growth,
        kind="undecided",
        verdict=VerdictKind.INCONCLUSIVE,
        rates=(replace(rate, upper=2e9),),
    )

    assert waived(open_, of_growth) == ""
    assert "may grow faster" in waived(
        replace(open_, rates=(replace(rate, upper=2.2e9),)), of_growth
    )
    assert "may grow faster" in waived(
        replace(open_, rates=(replace(rate, upper=float("inf")),)), of_growth
    )
    assert waived(open_, replace(of_growth, max_rate=None)) == ""
    assert waived(replace(open_, subject="threads"), of_growth) == "not named"
    assert waived(open_, replace(of_growth, kind="decay")) == "not named"


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("2GiB/h", MaxRate(2 * 2**30, "B", "h")),
        ("60MiB/min", MaxRate(3600 * 2**20, "B", "h")),
        ("4KiB/request", MaxRate(4096, "B", "request")),
        ("1.1 slots/retract", MaxRate(1.1, "slots", "retract")),
        ("0.9 nodes/evicted node", MaxRate(0.9, "nodes", "evicted node")),
    ],
)
def test_a_rate_is_read_in_the_words_of_findings(text: str, rate: MaxRate) -> None:
    assert parse_max_rate(text) == rate
