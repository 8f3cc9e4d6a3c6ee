from __future__ import annotations

import copy
import signal
import zlib
from pathlib import Path

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.records.events import Checkpoint, Phase
from hybridbench.records.heap import InstanceCount
from hybridbench.records.manifest import manifest_from_json
from hybridbench.rundir.reader import read_run
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs import soak
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.live import picture
from hybridbench.runs.replay import RECORDING, replay
from hybridbench.runs.status import RunStatus, View
from tests.unit.report.synthetic import manifest
from tests.unit.runs.fakes import FakeTarget, FakeView
from tests.unit.runs.test_soak import fake_soak


def shown(run_dir: Path, lasts_s: float = 15.0) -> tuple[list[RunStatus], FakeClock]:
    """Return the statuses that a view receives, and the clock of the replay."""
    seen: list[RunStatus] = []
    clock = FakeClock()
    view = FakeView(lambda status: seen.append(copy.deepcopy(status)))

    assert replay(run_dir, lasts_s, view, clock, Interrupts())

    return seen, clock


def test_a_replay_shows_what_the_live_view_of_the_run_showed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lived: list[RunStatus] = []
    view = FakeView(lambda status: lived.append(copy.deepcopy(status)))
    monkeypatch.setattr(soak, "make_view", lambda _: view)
    target = FakeTarget(FakeClock())

    run_dir = fake_soak(tmp_path, monkeypatch, target)
    replayed, _ = shown(run_dir)

    last, again = lived[-1], replayed[-1]
    assert last.heap_scans > 1
    assert last.checkpoints > 1
    for name in (
        *("duration_s", "finished", "heap_scans", "checkpoints", "collectible_bytes"),
        *("private_bytes", "private_history", "pools", "requests_per_s", "tokens_per_s"),
        *("running", "waiting", "suspicion", "roles"),
    ):
        assert getattr(again, name) == getattr(last, name), name
    fitted, fitted_again = last.slope.fit(), again.slope.fit()
    assert (fitted is None) is (fitted_again is None)


def test_what_the_heap_scans_and_the_engine_said_is_shown_when_it_came(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", manifest_from_json(manifest()), FakeClock()) as writer:
        writer.event(Phase("warmup", "warmup", t_s=1.0))
        for second in (2.0, 4.0, 6.0, 8.0):
            writer.sample(
                second,
                "steady",
                {"rss_anon_swap_bytes": 1e8, "probe_stop_s": 0.7, "probe_wait_s": 0.2},
            )
        # A heap scan's sample has the time of its fork, but is stored when its answer arrives.
        leaked = InstanceCount(live=9, expected=4)
        parts = {"live": leaked.live, "expected": leaked.expected, "stray": leaked.stray}
        counted = {f"instances.TreeNode.{part}": float(n) for part, n in parts.items()}
        writer.sample(5.0, "steady", {"gc_collectible_bytes": 1e3, **counted})
        writer.event(Checkpoint(index=0, t_s=9.0))

    seen, clock = shown(tmp_path / "run")

    found = [status.elapsed_s for status in seen if status.suspicion]
    assert found == [8.0, 9.0]
    assert seen[-1].so_far == "possible leak: 5 removed TreeNode objects are still alive"
    assert (seen[-1].checkpoints, seen[-1].traffic_s) == (1, 8.0)
    assert seen[-2].probe_share == (0.7 - 0.2) / 7.0
    assert clock.monotonic_s() == pytest.approx(15.0)


def test_a_signal_ends_a_replay_within_a_turn(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", manifest_from_json(manifest()), FakeClock()) as writer:
        writer.sample(1.0, "steady", {"rss_anon_swap_bytes": 1e8})
        writer.sample(1000.0, "steady", {"rss_anon_swap_bytes": 1e8})
    clock, interrupts = FakeClock(), Interrupts()
    view = FakeView(lambda _: interrupts.on_signal(signal.SIGINT, None))

    whole = replay(tmp_path / "run", 1000.0, view, clock, interrupts)

    assert not whole
    assert view.updates == 1
    assert clock.monotonic_s() == pytest.approx(1.0, abs=0.25)


def test_a_run_without_samples_is_over_at_once(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", manifest_from_json(manifest()), FakeClock()):
        pass

    assert replay(tmp_path / "run", 15.0, View(), FakeClock(), Interrupts())


def test_the_recording_shows_the_leak_that_its_series_have() -> None:
    record = read_run(RECORDING)
    seen, clock = shown(RECORDING)

    last = seen[-1]
    series = record.series
    assert clock.monotonic_s() == pytest.approx(15.0)
    assert last.heap_scans == len(series["gc_collectible_bytes"])
    assert last.checkpoints == len([e for e in record.events if isinstance(e, Checkpoint)])
    assert last.private_bytes == series["rss_anon_swap_bytes"].value[-1]
    assert last.suspicion
    # At most half a minute after the first heap scan, as in the run itself.
    first = next(status for status in seen if status.suspicion)
    assert first.elapsed_s < series["gc_collectible_bytes"].t_s[0] + 30.0
    slope = last.slope.fit()
    assert slope is not None
    assert slope.per_hour - slope.half_width > 0
    assert picture(last, 80)


def test_the_recording_is_what_was_recorded_and_small_in_a_wheel() -> None:
    files = {path.name: path.read_bytes() for path in RECORDING.iterdir()}

    assert set(files) == {"manifest.json", "samples.jsonl", "events.jsonl", "diagnosis.json"}
    assert sum(len(zlib.compress(data)) for data in files.values()) < 120_000
