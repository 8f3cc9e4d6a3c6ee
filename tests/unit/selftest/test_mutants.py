"""Measuring recall: what is stored, the outcomes of soaks, and the totals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hybridbench.defects.mutants import REACHED, Candidate, candidates
from hybridbench.foundation.errors import UsageError, WorkerFailedError
from hybridbench.records.events import Crash, Event, Phase
from hybridbench.selftest import mutants, recall
from hybridbench.selftest.mutants import Chosen, Kill, MutantTest, Reach, Soaked
from tests.fuzz.corpus import write_run
from tests.unit.report.synthetic import record_of

PAGES = Path(__file__).parents[3] / "docs" / "explanation"
BOOT, STEADY = Phase(phase="boot"), Phase(t_s=3.6, phase="steady")
ENDS: dict[str, tuple[Event, ...]] = {
    mutants.MISSED: (BOOT, STEADY, Phase(t_s=60.0, phase="done")),
    mutants.CRASHED: (BOOT, STEADY, Crash(t_s=60.5)),
    mutants.DEAD: (BOOT, Crash(t_s=60.5)),
    "never ready": (BOOT,),
}


class Fakes(MutantTest):
    """Runs no soaks: takes ``outcomes`` by slug; the default is FOUND."""

    def __init__(self, store: Path, jobs: int = 2) -> None:
        self.lines: list[str] = []
        super().__init__(store, jobs, on_line=self.lines.append)
        self.outcomes: dict[str, str] = {}
        self.soaked: list[str] = []

    def _soak_healthy(self, workload: mutants.Workload) -> Reach:
        return Reach(workload, "CLEAN", {c.slug: len(workload[0]) for c in candidates()})

    def _soak(self, slug: str, workload: mutants.Workload, seconds: float, store: Path) -> None:
        self.soaked.append(slug)
        outcome = self.outcomes.get(slug, mutants.FOUND)
        record = record_of(60.0, leaky=outcome == mutants.FOUND)
        write_run(store / "run", replace(record, events=ENDS.get(outcome, record.events)))


def store_with(tmp_path: Path, killed: list[Candidate]) -> Path:
    """Return a store in which the laws have killed ``killed``."""
    slugs = {c.slug for c in killed}
    kills = [
        Kill(REACHED),
        *(Kill(c.slug, "a law" * (c.slug in slugs) or None) for c in candidates()),
    ]
    (tmp_path / "kills.jsonl").write_bytes(b"".join(msgspec.json.encode(k) + b"\n" for k in kills))
    return tmp_path


def test_only_mutants_that_a_law_kills_are_soaked_each_once(tmp_path: Path) -> None:
    killed = list(candidates()[:4])
    first = Fakes(store_with(tmp_path, killed))
    first.run(Chosen(sample=len(candidates()) // 2))
    again = Fakes(tmp_path)
    again.run(Chosen())

    assert len(first.soaked) < len(killed)
    assert sorted(first.soaked + again.soaked) == sorted(c.slug for c in killed)


def test_a_half_has_its_mutants_alone(tmp_path: Path) -> None:
    killed = list(candidates()[:8])
    test = Fakes(store_with(tmp_path, killed))
    test.run(Chosen("B"))

    measured = test.measured("B")

    assert {s.half for s in measured.soaked} == {"B"}
    assert measured.killed == len(measured.soaked) == sum(c.half == "B" for c in killed)


def test_a_worker_that_dies_before_the_judged_part_is_dead_and_in_it_crashed(
    tmp_path: Path,
) -> None:
    outcomes = [mutants.FOUND, mutants.MISSED, mutants.CRASHED, mutants.DEAD]
    those = dict(zip(candidates(), outcomes, strict=False))
    test = Fakes(store_with(tmp_path, list(those)))
    test.outcomes = {c.slug: outcome for c, outcome in those.items()}

    test.run(Chosen())

    assert {s.mutant: s.outcome for s in test.measured("").soaked} == test.outcomes
    kept = {path.name for path in (tmp_path / "runs").iterdir()}
    assert kept == {slug for slug, outcome in test.outcomes.items() if outcome == mutants.MISSED}


def test_a_workload_that_crashes_without_a_mutant_ends_the_measurement(tmp_path: Path) -> None:
    class Counting(Fakes):
        _soak_healthy = MutantTest._soak_healthy

    test = Counting(store_with(tmp_path, []))
    test.outcomes = {REACHED: mutants.CRASHED}

    with pytest.raises(WorkerFailedError, match="although no statement was removed"):
        test.run(Chosen())


def test_a_profile_without_compared_answers_is_chosen_only_if_no_other_reaches_it(
    tmp_path: Path,
) -> None:
    both, alone = candidates()[:2]
    counts = {"feature-payload": {both.slug: 9, alone.slug: 9}, "smoke": {both.slug: 1}}

    class Reached(Fakes):
        def _soak_healthy(self, workload: mutants.Workload) -> Reach:
            return Reach(workload, "CLEAN", counts.get(workload[0], {"other": 1}))

    test = Reached(store_with(tmp_path, [both, alone]))
    test.run(Chosen())

    chosen = {s.mutant: s.workload for s in test.measured("").soaked}
    assert chosen == {both.slug: "smoke", alone.slug: "feature-payload"}


def test_a_mutant_missed_on_one_model_is_soaked_on_the_next(tmp_path: Path) -> None:
    found, missed, once = candidates()[:3]
    reached = {found.slug: 5, missed.slug: 5}
    counts = {
        "host-tier-windows": dict.fromkeys((*reached, once.slug), 9),
        "chat-churn": dict.fromkeys(reached, 7),
        "smoke": dict.fromkeys(reached, 8),
        "host-tier": dict.fromkeys(reached, 1),
        "classify-short": dict.fromkeys(reached, 1),
    }

    class OnModels(Fakes):
        def _soak_healthy(self, workload: mutants.Workload) -> Reach:
            known = counts.get(workload[0], {}) if len(workload) == 1 else {}
            return Reach(workload, "CLEAN", known or {"other": 1})

        def _soak(self, slug: str, workload: mutants.Workload, seconds: float, store: Path) -> None:
            is_found = (slug, workload[0]) == (found.slug, "smoke")
            self.outcomes[slug] = mutants.FOUND if is_found else mutants.MISSED
            super()._soak(slug, workload, seconds, store)

    test = OnModels(store_with(tmp_path, [found, missed, once]), jobs=1)
    test.run(Chosen())

    results = {s.mutant: (s.outcome, s.workload) for s in test.measured("").soaked}
    assert results == {
        found.slug: (mutants.FOUND, "smoke"),
        missed.slug: (mutants.MISSED, "host-tier-windows"),
        once.slug: (mutants.MISSED, "host-tier-windows"),
    }
    assert test.soaked.count(found.slug) == 2
    assert test.soaked.count(missed.slug) == 3
    assert test.soaked.count(once.slug) == 1


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    one = candidates()[0]
    store_with(tmp_path, [one])
    (tmp_path / "soaks.jsonl").write_bytes(b'{"mutant": "mutant-')

    test = Fakes(tmp_path)
    test.run(Chosen())
    Fakes(tmp_path).run(Chosen())

    assert [s.mutant for s in Fakes(tmp_path).measured("").soaked] == [one.slug]


def test_an_engine_that_hangs_while_it_is_built_is_dead(tmp_path: Path) -> None:
    one = candidates()[0]
    test = Fakes(store_with(tmp_path, [one]))
    test.outcomes[one.slug] = "never ready"

    test.run(Chosen())

    assert [s.outcome for s in test.measured("").soaked] == [mutants.DEAD]


def test_what_was_found_before_a_ctrl_c_is_kept(tmp_path: Path) -> None:
    class Interrupted(Fakes):
        def _soak(self, slug: str, workload: mutants.Workload, seconds: float, store: Path) -> None:
            if self.soaked:
                raise KeyboardInterrupt
            super()._soak(slug, workload, seconds, store)

    killed = list(candidates()[:5])
    test = Interrupted(store_with(tmp_path, killed), jobs=1)

    with pytest.raises(KeyboardInterrupt):
        test.run(Chosen())

    assert [s.mutant for s in Fakes(tmp_path).measured("").soaked] == test.soaked
    assert len(test.soaked) == 1


def test_a_law_that_fails_without_a_mutant_measures_nothing(tmp_path: Path) -> None:
    store_with(tmp_path, [])
    with (tmp_path / "kills.jsonl").open("ab") as out:
        out.write(msgspec.json.encode(Kill(REACHED, "a law")) + b"\n")

    with pytest.raises(UsageError, match="a law fails without any mutant"):
        Fakes(tmp_path).run(Chosen())


def test_without_the_laws_of_a_checkout_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match="laws"):
        Fakes(tmp_path).run(Chosen())


def soaked(outcome: str, kind: str = "counts", number: int = 0) -> Soaked:
    return Soaked(f"mutant-{outcome}{number}", f"a.py:A.b: {outcome}", kind, "B", outcome, "smoke")


def measured(*those: Soaked) -> mutants.Measured:
    return mutants.Measured("B", {"smoke": "CLEAN", "forced": "LEAK"}, 100, 60, those)


def test_crashed_and_dead_are_in_no_denominator_and_unreached_is_a_miss() -> None:
    found = [soaked("found", number=n) for n in range(8)]
    those = [*found, soaked("missed"), soaked("unreached"), soaked("crashed"), soaked("dead")]

    text = recall.markdown(recall.recall_of(measured(*those)))

    # Wilson's interval for 8 of 10, from R's prop.test without continuity correction.
    assert "| all | 8 of 10, 80% (49% to 94%) | 8 | 1 | 1 | 1 | 1 |" in text
    assert "| clears | - | 0 | 0 | 0 | 0 | 0 |" in text
    assert "`a.py:A.b: missed`" in text
    assert "`a.py:A.b: found`" not in text


def test_a_measurement_is_stored_and_read_again_and_names_false_alarms() -> None:
    made = recall.recall_of(measured(soaked("found"), soaked("missed")))

    assert recall.read(recall.to_json(made)) == made
    assert made.false_alarms == ["forced"]


def test_the_page_has_the_stored_measurement_of_half_b() -> None:
    stored = recall.read((PAGES / "recall.json").read_bytes())
    page = (PAGES / "recall.md").read_text(encoding="utf-8")

    assert stored.half == "B"
    assert recall.markdown(stored) in page
    assert recall.summary(stored) in page.replace("\n", " ")
    assert not stored.false_alarms
