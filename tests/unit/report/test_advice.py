"""What to do next follows from the finding, and from the event where it is known."""

from __future__ import annotations

import pytest

from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import Finding, Verdict, VerdictKind
from hybridbench.report.advice import next_step

COMMAND = ("hybridbench", "soak", "--duration", "3m")


def advice(kind: str, driver: str | None) -> str:
    finding = Finding(kind, VerdictKind.LEAK, "mamba: state slots", "30 are missing", driver=driver)
    verdict = Verdict(VerdictKind.LEAK, "LEAK", (finding,), (), None, "")
    fact = next_step(verdict, Manifest(command=COMMAND))
    assert fact.code == "hybridbench soak --duration 3m"
    return fact.text


@pytest.mark.parametrize("kind", ["residual", "container-grows"])
def test_a_known_event_is_where_to_begin(kind: str) -> None:
    assert advice(kind, "session_closes").startswith("Start with the session close handler:")


@pytest.mark.parametrize("kind", ["residual", "container-grows"])
def test_without_one_every_way_is_to_be_looked_at(kind: str) -> None:
    text = advice(kind, None)

    assert not text.startswith("Begin")
    assert "state slots" in text
    assert "mamba:" not in text


def test_a_crash_without_a_last_line_sends_nobody_to_read_one() -> None:
    def text(*evidence: str) -> str:
        finding = Finding("crash", VerdictKind.CRASHED, "worker", "killed", evidence=evidence)
        verdict = Verdict(VerdictKind.CRASHED, "CRASHED", (finding,), (), None, "")
        return next_step(verdict, Manifest(command=COMMAND)).text

    assert "dmesg" in text()
    assert text("stderr: Segmentation fault").startswith("Read the last lines of the worker")


def test_an_event_helps_nobody_where_the_place_is_known_better() -> None:
    assert advice("locks-at-idle", "node_splits") == advice("locks-at-idle", None)
