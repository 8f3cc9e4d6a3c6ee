"""Waivers: by signature, up to a rate, until a date; they hide nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from hybridbench.nightly.plan import Waiver
from hybridbench.nightly.records import stored_finding
from hybridbench.nightly.waivers import MaxRate, judged, kind_left, parse_max_rate
from hybridbench.records.verdict import Finding, VerdictKind
from tests.unit.nightly.nights import GROWTH, NODES

TODAY = date(2026, 11, 20)
CELL = ("chat-churn", "qwen3-next")
KNOWN = Waiver(
    kind="instances-wait-for-collector",
    subject="TreeNode",
    driver="nodes_*",
    max_rate="0.9 nodes/evicted node",
    expires=TODAY,
    link="tracker/1",
    reason="known",
)
LEAK = stored_finding(NODES)


def waived(finding: Finding, waiver: Waiver = KNOWN, day: date = TODAY) -> str:
    """Empty if it is waived, else why not."""
    (entry,) = judged([finding], [waiver], CELL, day)
    return "" if entry.waiver is waiver else entry.why_not or "not named"


def test_a_known_finding_is_waived_to_the_end_of_its_day() -> None:
    assert waived(LEAK) == ""
    assert "expired on 2026-11-20 (tracker/1)" in waived(LEAK, day=date(2026, 11, 21))


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
def test_another_signature_is_another_finding(other: Finding) -> None:
    assert waived(other) == "not named"


def test_a_waiver_may_be_of_one_profile_or_model_only() -> None:
    assert waived(LEAK, replace(KNOWN, profile="chat-*", model="qwen3-next")) == ""
    assert waived(LEAK, replace(KNOWN, profile="smoke")) == "not named"
    assert waived(LEAK, replace(KNOWN, model="other")) == "not named"


def test_what_is_left_decides() -> None:
    growth = stored_finding(GROWTH)

    assert kind_left(judged([LEAK], [KNOWN], CELL, TODAY)) is VerdictKind.CLEAN
    assert kind_left(judged([LEAK, growth], [KNOWN], CELL, TODAY)) is VerdictKind.LEAK


def test_a_growth_that_is_waived_may_stay_undecided_below_its_rate() -> None:
    growth = stored_finding(GROWTH)
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
        replace(open_, rates=(replace(rate, upper=float("nan")),)), of_growth
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
