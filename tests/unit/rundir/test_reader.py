"""Reading a run back, wherever it was cut or damaged, without inventing anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.records.events import IdleLook, Note, Phase, Steady
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import (
    OBSERVED,
    Intervals,
    Manifest,
    TargetFacts,
    manifest_from_json,
)
from hybridbench.rundir.reader import read_run
from hybridbench.rundir.writer import RunWriter

MANIFEST: dict[str, JsonValue] = {
    "run_id": "r1",
    "started_wall_s": 1_700_000_000.0,
    "model": {"name": "qwen3-next"},
    "profile": {"name": "smoke"},
    "seed": 1,
    "defects": [],
    "versions": {"hybridbench": "0.1.0"},
}
SAMPLES = 12


def make_run(run_dir: Path, samples: int = SAMPLES) -> Path:
    with RunWriter(run_dir, manifest_from_json(MANIFEST), FakeClock()) as run:
        run.event(Phase(name="load", t_s=0.0))
        for step in range(samples):
            metrics = {"rss_bytes": 1e9 + step * 1.5, "events.finishes": float(step)}
            run.sample(5.0 * step, "load", metrics)
        run.event(Steady(reason="full", t_s=30.0))
    return run_dir


def notes(record: RunRecord) -> list[str]:
    return [note.text for note in record.all_events(Note)]


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = read_run(make_run(tmp_path / "run"))

    rss = record.series["rss_bytes"]
    assert rss.t_s.tolist() == [5.0 * step for step in range(SAMPLES)]
    assert rss.value.tolist() == [1e9 + step * 1.5 for step in range(SAMPLES)]
    assert record.events == (Phase(name="load", t_s=0.0), Steady("full", t_s=30.0))
    assert record.manifest.run_id == "r1"


def test_counters_that_were_withdrawn_are_left_out_of_a_watched_run(tmp_path: Path) -> None:
    facts = TargetFacts(kind=OBSERVED)
    manifest = Manifest(run_id="r1", started_wall_s=1.7e9, target=facts)
    both = {"scraped.early_total": 3.0, "scraped.kept_total": 5.0}
    with RunWriter(tmp_path / "run", manifest, FakeClock()) as run:
        for step in range(20):
            m = both if step < 4 else {"scraped.kept_total": 5.0 + step}
            run.sample(5.0 * step, "observe", m)
        run.event(IdleLook(role="app", pid=1, index=0, counters=both, t_s=10.0))

    record = read_run(tmp_path / "run")

    (look,) = record.all_events(IdleLook)
    assert [*record.series] == [*look.counters] == ["scraped.kept_total"]
    assert record.drivers.works == ("scraped.kept_total",)


def test_rare_samples_do_not_withdraw_a_counter(tmp_path: Path) -> None:
    """Memory at an idle point is stored as a sample without counters."""
    facts, cadence = TargetFacts(kind=OBSERVED), Intervals(sample_s=60.0)
    manifest = Manifest(run_id="r1", started_wall_s=1.7e9, target=facts, cadence=cadence)
    with RunWriter(tmp_path / "run", manifest, FakeClock()) as run:
        for step in range(5):
            run.sample(60.0 * step, "observe", {"scraped.kept_total": 5.0 + step})
        run.sample(285.0, "idle", {"rss_bytes": 1e9})

    assert "scraped.kept_total" in read_run(tmp_path / "run").series


def test_latencies_come_back_by_interval_and_bucket(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock()) as run:
        run.sample(5.0, "load", {"rss_bytes": 1.0}, {"ttft": {301: 2, 17: 1}})
        run.sample(10.0, "load", {"rss_bytes": 1.0})
        run.sample(15.0, "load", {"rss_bytes": 1.0}, {"ttft": {301: 4}})

    ttft = read_run(tmp_path / "run").latencies["ttft"]
    assert ttft.t_s.tolist() == [5.0, 5.0, 15.0]
    assert ttft.bucket.tolist() == [301, 17, 301]
    assert ttft.count.tolist() == [2, 1, 4]
    assert ttft.histogram().counts() == {17: 1, 301: 6}


def test_a_cut_at_any_byte_of_the_last_lines_loses_at_most_the_line_it_hits(
    tmp_path: Path,
) -> None:
    run_dir = make_run(tmp_path / "run")
    data = (run_dir / "samples.jsonl").read_bytes()
    ends = [position for position, byte in enumerate(data) if byte == ord("\n")]

    for cut in range(ends[-4] + 1, len(data) + 1):
        (run_dir / "samples.jsonl").write_bytes(data[:cut])
        record = read_run(run_dir)
        # A line counts once it has its closing brace, with or without a newline.
        whole = sum(1 for end in ends if end <= cut)
        torn = data[:cut] != b"" and cut not in set(ends) | {e + 1 for e in ends}
        assert len(record.series["rss_bytes"]) == whole, cut
        expected = ["the last line of samples.jsonl was torn and is left out"] if torn else []
        assert notes(record) == expected, cut


@settings(max_examples=60, deadline=None)
@given(
    share=st.floats(0, 1), junk=st.binary(max_size=40), name=st.sampled_from(["samples", "events"])
)
def test_no_cut_and_no_junk_at_the_end_stops_the_reader(
    tmp_path_factory: pytest.TempPathFactory, share: float, junk: bytes, name: str
) -> None:
    run_dir = make_run(tmp_path_factory.mktemp("cut") / "run")
    file = run_dir / f"{name}.jsonl"
    data = file.read_bytes()
    cut = round(share * len(data))
    file.write_bytes(data[:cut] + junk)

    record = read_run(run_dir)

    whole = data[:cut].count(b"\n")
    if name == "samples":
        kept = record.series["rss_bytes"].value.tolist() if whole else []
        assert kept[:whole] == [1e9 + step * 1.5 for step in range(whole)]
    assert record.manifest.run_id == "r1"
    shutil.rmtree(run_dir)


@pytest.mark.parametrize(
    "damage",
    [
        b"\x00\x00\x00\x00",
        b'{"t": 1, "m": {"rss_by',
        b'{"t": 1.0, "m": {"rss_bytes": NaN}}',
        b'{"t": 1.0, "m": {"rss_bytes": "big"}}',
        b"[" * 5000,
        b'{"t": 1.0}',
        b"\xff\xfe",
    ],
    ids=["zeros", "half", "nan", "text", "deep", "keyless", "not-utf8"],
)
def test_a_damaged_line_in_the_middle_is_skipped_and_counted(tmp_path: Path, damage: bytes) -> None:
    run_dir = make_run(tmp_path / "run")
    lines = (run_dir / "samples.jsonl").read_bytes().split(b"\n")
    lines[4] = damage
    (run_dir / "samples.jsonl").write_bytes(b"\n".join(lines))

    record = read_run(run_dir)

    assert len(record.series["rss_bytes"]) == SAMPLES - 1
    assert notes(record) == ["1 damaged line of samples.jsonl skipped"]


def test_samples_that_go_back_in_time_are_skipped_and_counted(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    with (run_dir / "samples.jsonl").open("a") as file:
        file.write('{"t": 5.0, "phase": "load", "m": {"rss_bytes": 7}}\n')
        file.write('{"t": 55.0, "phase": "load", "m": {"rss_bytes": 7}}\n')

    record = read_run(run_dir)

    assert len(record.series["rss_bytes"]) == SAMPLES
    assert notes(record) == ["2 samples of samples.jsonl skipped: time went backwards"]


def test_a_slow_probe_may_report_in_a_line_of_its_own_at_a_time_already_seen(
    tmp_path: Path,
) -> None:
    run_dir = make_run(tmp_path / "run")
    with (run_dir / "samples.jsonl").open("a") as file:
        file.write('{"t": 50.0, "phase": "load", "m": {"gc_collectible_bytes": 7}}\n')

    record = read_run(run_dir)

    assert record.series["gc_collectible_bytes"].t_s.tolist() == [50.0]
    assert notes(record) == []


def test_metrics_of_another_version_are_left_out_by_name(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    with (run_dir / "samples.jsonl").open("a") as file:
        file.write('{"t": 500.0, "phase": "load", "m": {"rss_bytes": 7, "from_tomorrow": 1}}\n')

    record = read_run(run_dir)

    assert "from_tomorrow" not in record.series
    assert notes(record) == ["metrics this version does not know are left out: from_tomorrow"]


def test_without_events_the_samples_tell_the_phases(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    (run_dir / "events.jsonl").unlink()
    with (run_dir / "samples.jsonl").open("a") as file:
        file.write('{"t": 500.0, "phase": "drain", "m": {}}\n')

    record = read_run(run_dir)

    assert [(phase.t_s, phase.name) for phase in record.all_events(Phase)] == [
        (0.0, "load"),
        (500.0, "drain"),
    ]
    assert notes(record) == ["events.jsonl is missing"]


def test_a_run_killed_before_its_first_sample_is_empty_not_broken(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", samples=0)
    (run_dir / "samples.jsonl").unlink()

    record = read_run(run_dir)

    assert record.series == {}
    assert notes(record) == ["samples.jsonl is missing"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"schema": "hybridbench.run/2"}', "hybridbench.run/2"),
        ('{"schema": "hybridbench.run/1"}', "`run_id`"),
        ('{"run_id": ', "is not JSON"),
        ("[]", "not a JSON object"),
    ],
)
def test_a_manifest_that_cannot_be_trusted_ends_in_one_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    run_dir = make_run(tmp_path / "run")
    (run_dir / "manifest.json").write_text(text)

    with pytest.raises(RunDirectoryError, match=sentence) as caught:
        read_run(run_dir)

    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="is not a run directory"):
        read_run(tmp_path)


def test_a_folder_of_runs_is_told_how_to_list_them(tmp_path: Path) -> None:
    make_run(tmp_path / "run")

    with pytest.raises(
        RunDirectoryError, match=r"name a run in it: `hybridbench list runs --store /"
    ):
        read_run(tmp_path)


def test_the_bare_name_of_a_run_suggests_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "results" / "20260102-smoke")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(RunDirectoryError) as caught:
        read_run(Path("20260102-smoke"))

    said = "20260102-smoke does not exist; did you mean results/20260102-smoke?"
    assert str(caught.value) == said


def test_a_night_of_samples_stays_in_megabytes(tmp_path: Path) -> None:
    one_in = 60
    with RunWriter(tmp_path / "run", manifest_from_json(MANIFEST), FakeClock()) as run:
        for step in range(12 * 720 // one_in):
            metrics = {f"events.c{k}": 1e6 / (k + 1) + step / 7 for k in range(60)}
            run.sample(5.0 * step, "load", metrics)

    size = (tmp_path / "run" / "samples.jsonl").stat().st_size
    assert size * one_in < 20e6
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["schema"] == (
        "hybridbench.run/1"
    )
