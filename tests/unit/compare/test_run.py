"""Rounds: which version serves when, with which seed, and what ends a comparison."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from hybridbench.analysis.comparison.records import ComparisonTerms
from hybridbench.compare.live_side import BlockDone, CompareContext
from hybridbench.compare.plan import ComparePlan
from hybridbench.compare.run import CompareOutcome, run_comparison
from hybridbench.compare.sides import Side
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.errors import ExitCode, SameEngineError, UsageError
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import Manifest
from hybridbench.records.messages import Ready
from hybridbench.runs.loop import WorkerLostError
from hybridbench.workload.catalog import load_profile

READY = Ready(
    pid=1, capabilities=[], metrics=[], heap_scan="fork", engine_files_sha256="f" * 64,
    engine_files=9, model="tiny", model_note="", pools={}, versions={}, gc={}, malloc={},
    max_prompt_tokens=9, vocab_size=9, boot_s=1.0,
)  # fmt: skip
BLOCK_S = 10.0


class Script:
    """Scripts what a test's sides do, and records all calls to them, in order."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.asked: list[tuple[str, str, int]] = []  # label, tag, seed
        self.requests: list[int] = []
        self.turns: list[str] = []  # the version that served each slice
        self.slower = 1.0  # how much longer the second version takes
        self.failed_in: str | None = None  # the tag of the block in which the bench fails
        self.failures: list[str] = []  # the versions that received the failure
        self.lost_in: str | None = None  # the tag of the block in which the second version is lost
        self.signal_in: str | None = None
        self.manifests: dict[str, Manifest] = {}
        self.closed: list[str] = []
        self.finished: list[str] = []
        self.processes: list[str] = []  # launch, start and retire steps, in order
        self.lost_at: str | None = None  # the step of a renewal in which the second version is lost

    @contextmanager
    def alike(self) -> Iterator[None]:
        self.processes.append("(")
        yield
        self.processes.append(")")

    def make(self, side: Side, label: str, context: CompareContext) -> ScriptedSide:
        return ScriptedSide(self, side, label)

    def run(self, plan: ComparePlan) -> CompareOutcome:
        return run_comparison(plan, self.clock, self.make, self.alike)


class ScriptedSide:
    """A version that serves each block in the fake clock's time."""

    def __init__(self, script: Script, side: Side, label: str) -> None:
        self.script, self.side, self.label = script, side, label
        self.lost: str | None = None
        self.ready = READY

    @property
    def manifest(self) -> Manifest:
        return self.script.manifests.get(self.label, Manifest())

    def open(self) -> None: ...
    def launch(self) -> None:
        self._process("launch")

    def start(self) -> None:
        self._process("start")

    def retire(self) -> None:
        self._process("retire")

    def _process(self, step: str) -> None:
        self.script.processes.append(f"{step} {self.label}")
        if self.label == "b" and step == self.script.lost_at and self.script.asked:
            raise WorkerLostError("exit", "it fell")

    def finish(self) -> None:
        self.script.finished.append(self.label)

    def warm_up(self, seed: int, calibrate_s: float) -> float:
        return 5.0

    def begin_block(self, seed: int, requests: int, tag: str, phase: str) -> None:
        script = self.script
        script.asked.append((self.label, tag, seed))
        script.requests.append(requests)
        if self.label == "b" and tag == script.failed_in:
            raise ZeroDivisionError("on purpose")
        if self.label == "b" and tag == script.lost_in:
            raise WorkerLostError("exit", "it fell")
        if tag == script.signal_in and self.label == "a":
            os.kill(os.getpid(), signal.SIGINT)
        self.start_s = script.clock.monotonic_s()
        # Each block has a little noise of its own, the same in each test.
        noise = 1.0 + 0.002 * (len(script.asked) * 7 % 5 - 2)
        self.took_s = BLOCK_S * noise * (script.slower if self.label == "b" else 1.0)
        self.left_s = self.took_s

    def go_on(self, slice_s: float) -> bool:
        served_s = min(slice_s, self.left_s)
        self.left_s -= served_s
        self.script.clock.advance(served_s)
        self.script.turns.append(self.label)
        return self.left_s <= 0

    def end_block(self) -> BlockDone:
        return BlockDone(self.start_s, {"throughput_tokens_per_s": 1000.0 / self.took_s})

    def record_loss(self, lost: WorkerLostError) -> None:
        self.lost = lost.detail

    def record_failure(self, error: Exception) -> None:
        self.script.failures.append(f"{self.label}: {error}")

    def close(self) -> None:
        self.script.closed.append(self.label)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def plan(tmp_path: Path) -> ComparePlan:
    return ComparePlan(
        sides=(Side(".", "tree"), Side("git:new", "git")),
        profile=load_profile("smoke"),
        model="qwen3-next",
        store=tmp_path,
        seed=3,
        terms=ComparisonTerms(looks=(6, 12)),
        block_s=BLOCK_S,
        ui="none",
    )


def facts(outcome: CompareOutcome) -> dict[str, JsonValue]:
    return cast(
        "dict[str, JsonValue]", json.loads((outcome.directory / "comparison.json").read_text())
    )


def blocks(outcome: CompareOutcome) -> list[dict[str, float]]:
    lines = (outcome.directory / "blocks.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_versions_swap_turns_and_share_the_seed_and_the_work_of_a_round(
    script: Script, plan: ComparePlan
) -> None:
    script.run(plan)

    rounds = script.asked[2:]  # the first block of each does not count
    assert [label for label, _, _ in rounds[:8]] == list("abbaabba")
    for first, second in zip(rounds[::2], rounds[1::2], strict=True):
        assert first[1:] == second[1:]
    assert len({seed for _, _, seed in script.asked}) == len(rounds) // 2 + 1
    assert set(script.requests) == {50}  # ten seconds at the measured rate of five a second


def test_it_ends_at_the_look_that_decides(script: Script, plan: ComparePlan) -> None:
    script.slower = 1.2

    outcome = script.run(plan)

    assert facts(outcome)["ended"] == "decided"
    assert len(blocks(outcome)) == 12
    assert facts(outcome)["rounds"] == 6
    assert script.closed == ["b", "a"]


def test_no_round_begins_that_would_end_after_the_time(script: Script, plan: ComparePlan) -> None:
    outcome = script.run(replace(plan, max_time_s=65.0))

    assert facts(outcome)["ended"] == "max-time"
    assert facts(outcome)["rounds"] == 3


def test_a_bench_that_fails_keeps_the_rounds_before_and_without_one_it_raises(
    script: Script, plan: ComparePlan
) -> None:
    script.failed_in = "3."

    outcome = script.run(plan)

    assert (facts(outcome)["ended"], facts(outcome)["rounds"]) == ("failed", 2)
    assert script.failures == ["a: on purpose", "b: on purpose"]
    assert script.closed == ["b", "a"]
    script.failed_in = "1."
    with pytest.raises(ZeroDivisionError):
        script.run(plan)


def test_a_version_that_falls_ends_the_rounds_and_its_half_pair_is_kept(
    script: Script, plan: ComparePlan
) -> None:
    script.lost_in = "3."

    outcome = script.run(plan)

    assert facts(outcome)["ended"] == "lost"
    assert facts(outcome)["rounds"] == 2
    versions = facts(outcome)["versions"]
    assert isinstance(versions, list)
    assert [cast("dict[str, JsonValue]", v)["lost"] for v in versions] == [None, "it fell"]


def test_a_signal_ends_it_after_the_round_under_way(script: Script, plan: ComparePlan) -> None:
    script.signal_in = "2."

    outcome = script.run(plan)

    assert facts(outcome)["ended"] == "interrupted"
    assert outcome.exit_hint is ExitCode.INTERRUPTED
    assert facts(outcome)["rounds"] == 2
    assert len(blocks(outcome)) == 4
    assert facts(outcome)["exit_code"] == 130


def test_fresh_processes_are_asked_for_before_every_block(
    script: Script, plan: ComparePlan
) -> None:
    outcome = script.run(replace(plan, renew_every=1, terms=ComparisonTerms(looks=(2,))))

    assert facts(outcome)["rounds"] == 2
    assert [step.partition(" ")[0] for step in script.processes].count("start") == 6


def test_processes_are_renewed_between_groups_of_rounds(script: Script, plan: ComparePlan) -> None:
    outcome = script.run(replace(plan, renew_every=2, terms=ComparisonTerms(looks=(5,))))

    assert facts(outcome)["rounds"] == 5
    # After the second and the fourth round, all old processes end, and then all new ones are built
    # at the same time; the order of the versions alternates.
    assert script.processes == [
        *("(", "launch a", "launch b", "start a", "start b", ")"),
        *("retire b", "retire a", "(", "launch b", "launch a", "start b", "start a", ")"),
        *("retire a", "retire b", "(", "launch a", "launch b", "start a", "start b", ")"),
    ]
    assert facts(outcome)["renew_every"] == 2


@pytest.mark.parametrize("step", ["retire", "start"])
def test_a_version_that_falls_while_it_is_renewed_leaves_the_others_whole(
    script: Script, plan: ComparePlan, step: str
) -> None:
    script.lost_at = step

    outcome = script.run(replace(plan, renew_every=2))

    assert (facts(outcome)["ended"], facts(outcome)["rounds"]) == ("lost", 2)
    assert script.processes[-2:] == ["start a", ")"]
    assert script.finished == ["a"]
    assert script.closed == ["b", "a"]


def test_versions_that_differ_in_more_are_refused_before_any_traffic(
    script: Script, plan: ComparePlan
) -> None:
    script.manifests = {"a": Manifest(gc={"mode": "default"}), "b": Manifest(gc={"mode": "frozen"})}

    with pytest.raises(UsageError, match=r"\. and git:new cannot be compared, they differ in gc"):
        script.run(plan)

    assert script.asked == []
    assert list(plan.store.iterdir()) == []


def test_a_difference_that_is_allowed_is_no_reason_to_refuse(
    script: Script, plan: ComparePlan
) -> None:
    script.manifests = {"a": Manifest(gc={"mode": "default"}), "b": Manifest(gc={"mode": "frozen"})}

    outcome = script.run(replace(plan, allowed=frozenset({"gc"})))

    assert len(blocks(outcome)) >= 12
    assert facts(outcome)["allowed_mismatches"] == ["gc"]


def test_a_misspelt_key_that_may_differ_is_refused(script: Script, plan: ComparePlan) -> None:
    said = r"--allow-mismatch machine.kernle: .* did you mean machine.kernel\?"
    with pytest.raises(UsageError, match=said):
        script.run(replace(plan, allowed=frozenset({"machine.kernle"})))

    assert script.asked == []


def test_versions_take_turns_within_a_block_and_the_first_to_finish_waits(
    script: Script, plan: ComparePlan
) -> None:
    script.slower = 1.5

    script.run(replace(plan, slice_s=4.0, terms=ComparisonTerms(looks=(1,))))

    # The first block does not count and is served one version at a time, in one piece.
    assert script.turns[:2] == ["a", "b"]
    assert script.turns[2:] == ["a", "b", "a", "b", "a", "b", "b"]


@pytest.mark.parametrize("changes", [{"slice_s": 0.0}, {"profile": "mamba-churn"}])
def test_without_slices_or_with_scheduled_arrivals_whole_blocks_are_served_in_turn(
    changes: dict[str, object], script: Script, plan: ComparePlan
) -> None:
    profile = load_profile(str(changes.pop("profile", "smoke")))
    changed = replace(plan, profile=profile, terms=ComparisonTerms(looks=(2,)), **changes)  # type: ignore[arg-type]

    script.run(changed)

    assert changed.slice_s == 0.0 or not changed.is_closed_loop
    assert script.turns == ["a", "b", "a", "b", "b", "a"]


def test_a_version_that_falls_while_another_is_frozen_leaves_that_to_finish(
    script: Script, plan: ComparePlan
) -> None:
    script.lost_in = "2."

    outcome = script.run(replace(plan, slice_s=1.0))

    assert facts(outcome)["ended"] == "lost"
    assert script.closed == ["b", "a"]


def test_the_same_engine_under_another_name_is_said_at_once_and_leaves_nothing(
    tmp_path: Path, plan: ComparePlan
) -> None:
    script = Script()

    with pytest.raises(SameEngineError, match=r"\. and git:new run the same engine files") as told:
        script.run(replace(plan, same_engine=False))

    assert told.value.exit_code is ExitCode.CLEAN
    assert script.asked == []
    assert list(tmp_path.iterdir()) == []


def test_versions_written_alike_are_meant_to_be_the_same(plan: ComparePlan) -> None:
    alike = replace(plan, same_engine=False, sides=(Side(".", "tree"), Side(".", "tree")))

    outcome = Script().run(alike)

    assert blocks(outcome)


def test_a_defect_in_one_version_is_a_difference_though_the_files_are_the_same(
    plan: ComparePlan,
) -> None:
    sides = (Side(".", "tree"), Side("defect:slow-step", "defect", defects=("slow-step",)))

    outcome = Script().run(replace(plan, same_engine=False, sides=sides))

    assert blocks(outcome)
