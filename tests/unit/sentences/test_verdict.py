"""The words of each finding, and of the verdict above them."""

from __future__ import annotations

import pytest

from hybridbench.records.codes import FindingCode
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Finding, Rate, Verdict, VerdictKind
from hybridbench.sentences.verdict import phrased, phrased_finding
from hybridbench.sentences.words import Words

EXACTLY: dict[str, JsonValue] = {"driver_events": 40.0, "driver_share": 1.0, "driver_exact": True}
MOSTLY: dict[str, JsonValue] = {
    "driver_events": 4000.0,
    "driver_share": 0.98,
    "driver_exact": False,
    "rivals": ["tombstones", "a", "b", "c", "d"],
}
THREE = Rate(3.0, 3.0, 3.0, "state slots", "session close")
ABOUT = Rate(0.9, 0.885, 0.915, "entries", "retract")


def found(code: FindingCode, data: dict[str, JsonValue], *rates: Rate, driver: str = "") -> Finding:
    return Finding(
        code,
        VerdictKind.LEAK,
        "subject",
        driver=driver or None,
        rates=rates,
        since_s=75.0,
        data=data,
    )


WORDS: dict[str, tuple[Finding, Words]] = {
    "slots missing at checkpoints": (
        found(
            FindingCode.RESIDUAL,
            {
                "pool": "mamba",
                "missing": 120.0,
                "at_checkpoints": [60.0, 120.0],
                "slots": [3, 4],
                "slot_holders": ["REQ"],
                "slots_reported": 1120,
                **EXACTLY,
            },
            THREE,
            driver="sessions_closed",
        ),
        Words(
            "120 state slots are missing: neither free nor held by anyone; +3.00 state slots per "
            "session close, exactly",
            evidence=(
                "residual at the last checkpoints: 60, 120",
                "missing mamba slots, each with its last holder in the allocator's ledger: "
                "3 (a request), 4 and 1,118 more",
                "events.sessions_closed rose by 40; each event added exactly 3",
            ),
        ),
    ),
    "slots missing in the last samples": (
        found(
            FindingCode.RESIDUAL,
            {
                "pool": "kv",
                "missing": 5.0,
                "last_samples": 5,
                "slots": [7],
                "slots_reported": 1,
                "losing_steps": [{"counter": "retracts", "share": 0.6, "of_steps": 0.012}],
            },
        ),
        Words(
            "5 KV tokens are missing: neither free nor held by anyone",
            evidence=(
                "residual over the last 5 samples: at least 5",
                "missing kv slots: 7",
                "60% of the slots were lost in steps with events.retracts, which are 1.2% of all "
                "steps",
            ),
        ),
    ),
    "slots with two holders": (
        found(
            FindingCode.NEGATIVE_RESIDUAL,
            {"pool": "kv", "surplus": 2.0, "at_checkpoints": [-1.0, -2.0]},
        ),
        Words(
            "2 KV tokens have more than one holder while idle",
            "a slot was freed twice, or is counted by two holders",
            ("residual at the last checkpoints: -1, -2",),
        ),
    ),
    "slots of requests that are gone": (
        found(FindingCode.HELD_AT_IDLE, {"pool": "req", "held": 4.0}),
        Words(
            "4 request rows are held by requests that no longer exist",
            evidence=("in flight at the checkpoint at 1m15s",),
        ),
    ),
    "locks at idle": (
        found(
            FindingCode.LOCKS_AT_IDLE,
            {"pool": "kv", "component": "full", "locks": 2.0, "at_checkpoints": [1.0, 2.0]},
        ),
        Words(
            "2 full locks are held with no request in the engine",
            "a lock was never released",
            ("locks at the last checkpoints: 1, 2",),
        ),
    ),
    "locks below zero": (
        found(
            FindingCode.NEGATIVE_LOCKS,
            {"pool": "kv", "component": "full", "locks": -1.0, "at_checkpoints": [-1.0]},
        ),
        Words(
            "the count of full locks is -1 with no request in the engine",
            "a lock was released twice",
            ("locks at the last checkpoints: -1",),
        ),
    ),
    "a container that follows an event": (
        found(
            FindingCode.CONTAINER_GROWS,
            {"container": "journal", "first": 3.0, "last": 3600.0, **MOSTLY},
            ABOUT,
            driver="retracts",
        ),
        Words(
            "journal only grows: 3 to 3.60 k entries; +0.90 entries per retract (0.89 to 0.92)",
            "entries are added and never removed",
            (
                "98% of the growth came in intervals in which events.retracts rose (by 4,000 in "
                "all)",
                "retracts cannot be distinguished in this run from tombstones, a, b, c and 1 more",
            ),
        ),
    ),
    "a container that is longer at each checkpoint": (
        found(
            FindingCode.CONTAINER_GROWS,
            {
                "container": "log",
                "first": 1.0,
                "last": 4.0,
                "checkpoints": 4,
                "at_checkpoints": [1.0, 2.0, 3.0, 4.0],
            },
        ),
        Words(
            "log was longer at each of 4 checkpoints: 1 to 4 entries",
            "entries are added and never removed",
            ("length at idle checkpoints: 1, 2, 3, 4",),
        ),
    ),
}


def verdict_of(*findings: Finding) -> Verdict:
    return Verdict(VerdictKind.LEAK, "", findings, (), None, "")


@pytest.mark.parametrize("name", WORDS)
def test_a_finding_says(name: str) -> None:
    finding, words = WORDS[name]

    said = phrased_finding(finding)

    assert Words(said.title, said.cause, said.evidence) == words


def test_the_words_of_a_stored_finding_are_left_as_they_are() -> None:
    stored = Finding(FindingCode.RESIDUAL, VerdictKind.LEAK, "kv: KV tokens", "2 tokens are lost")

    assert phrased_finding(stored) is stored


def test_the_headline_is_the_first_title_and_counts_the_rest() -> None:
    lost = found(FindingCode.HELD_AT_IDLE, {"pool": "req", "held": 4.0})

    one, three = phrased(verdict_of(lost)), phrased(verdict_of(lost, lost, lost))

    assert one.headline == "LEAK: 4 request rows are held by requests that no longer exist"
    assert three.headline == f"{one.headline} (and 2 more findings)"
