"""``bisect --target``: releases in either direction, each prepared before it is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hybridbench.analysis.record import RunRecord
from hybridbench.cli import bisect as command
from hybridbench.compare.bisect import Answer, Tried
from hybridbench.foundation.errors import ExitCode
from hybridbench.records.events import Gap
from hybridbench.records.prepared import PreparedTarget
from hybridbench.runs.plan import SoakOutcome
from hybridbench.runs.watch import WatchPlan
from hybridbench.targets.engines.engine import Engine
from hybridbench.targets.prepared import save
from tests.fuzz.corpus import write_run
from tests.unit.cli.conftest import CommandLine
from tests.unit.report.comparisons import record

LEAKS = {"0.5.10", "0.5.10.post1"}


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of prepared releases, in order; the releases in ``LEAKS`` are bad."""
    names: list[str] = []

    def prepare(engine: Engine, release: str, root: Path, *others: object) -> None:
        del root, others
        names.append(f"{engine.name}=={release}")

    def search(good: str, kind: command._Releases, options: object) -> Callable[[str], object]:
        del good, options

        def try_one(release: str) -> Tried[str]:
            kind.make_ready(release)
            return Tried(release, Answer.BAD if release in LEAKS else Answer.GOOD, "as it is")

        return try_one

    monkeypatch.setattr("hybridbench.targets.prepare.prepare", prepare)
    monkeypatch.setattr(command, "_Search", search)
    return names


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("0.5.9", "0.5.10.post1", "first bad release: 0.5.10; 0.5.9 is good"),
        ("0.5.23", "0.5.10", "last bad release: 0.5.10.post1; 0.5.11 fixed it"),
    ],
)
def test_the_release_that_made_or_mended_it_is_named(
    prepared: list[str], hybridbench: CommandLine, good: str, bad: str, said: str
) -> None:
    done = hybridbench("bisect", "--target", "sglang-cache", "--good", good, "--bad", bad)

    assert done.returncode == ExitCode.CLEAN
    assert done.stdout.splitlines()[-1] == said
    assert prepared[:2] == [f"sglang-cache=={good}", f"sglang-cache=={bad}"]


@pytest.mark.usefixtures("prepared")
def test_a_single_release_after_the_good_one_is_in_the_singular(hybridbench: CommandLine) -> None:
    done = hybridbench("bisect", "--target", "sglang-cache", "--good", "0.5.9", "--bad", "0.5.10")

    assert "1 release after 0.5.9\n" in done.stderr


def test_nothing_is_looked_for_where_the_bad_release_shows_nothing(
    prepared: list[str], hybridbench: CommandLine
) -> None:
    done = hybridbench("bisect", "--target", "sglang-cache", "--good", "0.5.12", "--bad", "0.5.14")

    assert done.returncode == ExitCode.INCONCLUSIVE
    assert "0.5.14 is not shown to be worse than the good release." in done.stdout
    assert len(prepared) == 2


def an_hour(slope_gib: float) -> RunRecord:
    ten_minutes = record(slope_gib)
    series = {
        name: replace(one, t_s=6 * one.t_s, value=6 * one.value if "events." in name else one.value)
        for name, one in ten_minutes.series.items()
    }
    return replace(ten_minutes, series=series)


def test_servers_are_soaked_once_each_and_the_good_one_is_not_soaked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hybridbench: CommandLine
) -> None:
    soaked: list[str] = []
    disturbed: set[str] = set()

    def prepare(engine: Engine, release: str, root: Path, *others: object) -> None:
        del others
        folder = root / f"{engine.name}-{release}"
        folder.mkdir(parents=True, exist_ok=True)
        servers = tuple(engine.servers)
        save(folder, PreparedTarget(engine=engine.name, release=release, servers=servers))

    def run_watched(plan: WatchPlan) -> SoakOutcome:
        release = plan.target[0].split("vllm-")[1].split("/")[0]
        soaked.append(release)
        run_dir = plan.store / release
        run = an_hour(6 * 3.7 if release in {"1.3", "1.4"} else 0.0)
        gap = (Gap(t_s=3000.0, seconds=1800.0),) if release in disturbed else ()
        write_run(run_dir, replace(run, events=gap))
        return SoakOutcome(run_dir)

    monkeypatch.setattr("hybridbench.targets.prepare.prepare", prepare)
    monkeypatch.setattr(
        "hybridbench.targets.prepare.releases_of",
        lambda *_: ["0.9", "1.0", "1.1", "1.2", "1.3", "1.4"],
    )
    monkeypatch.setattr("hybridbench.compare.stored.run_watched", run_watched)
    words = (
        *("bisect", "--target", "vllm", "--good", "1.0", "--bad", "1.4", "--profile", "smoke"),
        *("--targets", str(tmp_path / "targets"), "--store", str(tmp_path / "store")),
    )

    done = hybridbench(*words)

    assert done.stdout.splitlines()[-1] == "first bad release: 1.3; 1.2 is good", done.stderr
    assert soaked == ["1.0", "1.4", "1.2", "1.3"]

    # Stored runs are reused, but only with the same settings.
    assert hybridbench(*words).stdout == done.stdout
    assert len(soaked) == 4
    assert hybridbench(*words, "--seed", "5").stdout == done.stdout
    assert len(soaked) == 8

    # A run that proves nothing is neither accepted as the good one nor reused from the store.
    disturbed.add("1.0")
    assert hybridbench(*words, "--seed", "6").returncode == ExitCode.INCONCLUSIVE
    disturbed.clear()
    assert hybridbench(*words, "--seed", "6").stdout == done.stdout
    assert soaked[8:] == ["1.0", "1.4", "1.0", "1.4", "1.2", "1.3"]


def test_options_of_engines_in_workers_are_refused_for_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hybridbench: CommandLine
) -> None:
    monkeypatch.setattr("hybridbench.targets.prepare.prepare", lambda *_: None)
    monkeypatch.setattr("hybridbench.targets.prepare.releases_of", lambda *_: ["1.0", "1.1"])

    done = hybridbench(
        "bisect", "--target", "vllm", "--good", "1.0", "--bad", "1.1", "--rounds", "3",
        "--targets", str(tmp_path), "--store", str(tmp_path / "store"),
    )  # fmt: skip

    assert done.returncode == ExitCode.USAGE
    assert "--rounds" in done.stderr
    assert not (tmp_path / "store").exists()


def test_an_engine_of_another_name_is_refused(hybridbench: CommandLine) -> None:
    done = hybridbench("bisect", "--target", "triton", "--good", "1.0", "--bad", "1.1")

    assert done.returncode == ExitCode.USAGE
    assert "--target triton: there is no such engine; there are vllm, sglang," in done.stderr
