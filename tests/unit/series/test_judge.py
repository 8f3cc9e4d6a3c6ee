"""From a user's series to a verdict, whatever its format, its unit and its recording faults."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridbench.analysis.record import FloatArray
from hybridbench.foundation.errors import HybridbenchError
from hybridbench.records.finding import VerdictKind
from hybridbench.report.external_series import series_document, series_json
from hybridbench.report.markdown import render_markdown
from hybridbench.series import units
from hybridbench.series.judge import FileVerdict, JudgeOptions, judge_file

MIB = 2.0**20
START = 1_700_000_000.0
STEADY = JudgeOptions(steady_at="5m")


@dataclass(frozen=True)
class Made:
    """One hour of memory, a reading every ten seconds."""

    t_s: FloatArray
    value: FloatArray

    def write(self, path: Path, rows: Sequence[str]) -> str:
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        return str(path)


def made(leak_mib_per_h: float = 0.0, seed: int = 0, hours: float = 1.0) -> Made:
    rng = np.random.default_rng(seed)
    t = np.arange(0.0, hours * 3600.0, 10.0)
    value = (800 + leak_mib_per_h * t / 3600 + rng.normal(0, 0.4, t.size)) * MIB
    return Made(t, np.round(value))


def csv(series: Made, path: Path, name: str = "rss_bytes", factor: float = 1.0) -> str:
    rows = [f"time,{name}"]
    rows += [
        f"{START + t:.3f},{float(v / factor)!r}"
        for t, v in zip(series.t_s, series.value, strict=True)
    ]
    return series.write(path, rows)


def jsonl(series: Made, path: Path) -> str:
    pairs = zip(series.t_s, series.value, strict=True)
    return series.write(
        path, [json.dumps({"time": START + t, "rss_bytes": float(v)}) for t, v in pairs]
    )


def prometheus(series: Made, path: Path) -> str:
    values = [[START + t, repr(float(v))] for t, v in zip(series.t_s, series.value, strict=True)]
    result = [{"metric": {"__name__": "rss_bytes"}, "values": values}]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return series.write(path, [json.dumps(document)])


def only(verdict: FileVerdict) -> tuple[VerdictKind, float, float, float]:
    (row,) = verdict.rows
    rate = row.result.rate_per_hour
    assert rate is not None
    return row.verdict, rate.value, rate.lower, rate.upper


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10_000), leak=st.sampled_from([0.0, 300.0]))
def test_the_same_data_gets_the_same_verdict_in_every_format(
    tmp_path: Path, seed: int, leak: float
) -> None:
    series = made(leak, seed)

    plain = csv(series, tmp_path / "a.csv")
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(Path(plain).read_bytes()))
    paths = [
        plain,
        jsonl(series, tmp_path / "a.jsonl"),
        prometheus(series, tmp_path / "a.json"),
        str(packed),
    ]
    answers = [only(judge_file(path, STEADY)) for path in paths]

    assert answers[0][0] is (VerdictKind.LEAK if leak else VerdictKind.CLEAN)
    assert all(answer == answers[0] for answer in answers[1:])


@pytest.mark.parametrize(
    ("name", "factor"),
    [("rss_bytes", 1.0), ("RSS (KB)", 1024.0), ("rss_mib", MIB), ("mem (GB)", 1e9)],
)
def test_the_unit_of_a_column_does_not_move_its_rate(
    tmp_path: Path, name: str, factor: float
) -> None:
    kind, rate, lower, upper = only(
        judge_file(csv(made(300), tmp_path / "a.csv", name, factor), STEADY)
    )

    assert kind is VerdictKind.LEAK
    assert rate == pytest.approx(300 * MIB, rel=0.05)
    assert lower < 300 * MIB < upper


@pytest.mark.parametrize("leak", [0.0, 300.0])
def test_a_series_of_no_known_unit_is_judged_the_same_at_any_scale(
    tmp_path: Path, leak: float
) -> None:
    series = made(leak)

    answers = [
        only(judge_file(csv(series, tmp_path / "a.csv", "objects", factor), STEADY))
        for factor in (1.0, 1000.0, 1e-3)
    ]

    assert len({kind for kind, *_ in answers}) == 1
    assert answers[0][1] == pytest.approx(answers[1][1] * 1000.0, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("unit", "factor"), [(None, 1024.0), ("MB", 1e6)])
def test_numbers_of_ps_are_kib_unless_a_unit_is_given(
    tmp_path: Path, unit: str | None, factor: float
) -> None:
    series = made(300)
    rows = [f"{4 * round(v / factor / 4)}" for v in series.value]
    path = series.write(tmp_path / "rss.txt", rows)
    interval_s = float(series.t_s[1] - series.t_s[0])

    kind, rate, *_ = only(
        judge_file(path, JudgeOptions(steady_at="5m", interval_s=interval_s, unit=unit))
    )

    assert kind is VerdictKind.LEAK
    assert rate == pytest.approx(300 * MIB, rel=0.05)


@pytest.mark.parametrize(("name", "kind"), [("rss", "INCONCLUSIVE"), ("rss_mib", "LEAK")])
def test_memory_that_grows_is_not_clean_for_want_of_a_unit(
    tmp_path: Path, name: str, kind: str
) -> None:
    series = made(30, hours=3.0)
    rows = [f"{t},{19_000 + v / MIB:.2f}" for t, v in zip(series.t_s, series.value, strict=True)]

    (row,) = judge_file(series.write(tmp_path / "a.csv", [f"time,{name}", *rows]), STEADY).rows

    assert row.verdict.value == kind
    assert ("--metric 'rss:UNIT'" in row.result.reason) == (name == "rss")


def test_growth_with_a_restart_is_told_and_never_fitted_across(tmp_path: Path) -> None:
    first, second = made(900, hours=1.5), made(900, seed=1, hours=0.9)
    t = np.concatenate([first.t_s, second.t_s + 1.5 * 3600])
    value = np.concatenate([first.value, second.value]) - 700 * MIB
    series = Made(t, value)
    rows = [f"{a},{v},{42 + (a >= 5400)}" for a, v in zip(t, value, strict=True)]

    verdict = judge_file(series.write(tmp_path / "a.csv", ["time,rss_bytes,pid", *rows]), STEADY)

    kind, rate, *_ = only(verdict)
    assert kind is VerdictKind.LEAK
    assert rate == pytest.approx(900 * MIB, rel=0.05)
    assert any("restarted after 1h30m" in note for note in verdict.rows[0].notes)
    # Without the process id, the fall may be one collection, and one is too few.
    alone = judge_file(csv(series, tmp_path / "b.csv"), STEADY)
    assert alone.kind is VerdictKind.INCONCLUSIVE
    assert not any("restarted" in note for note in alone.rows[0].notes)


def test_falls_that_may_be_restarts_or_teeth_leave_a_flat_trough_undecided(tmp_path: Path) -> None:
    t = np.arange(0.0, 7200.0, 10.0)
    rng = np.random.default_rng(3)
    value = (200 + 0.5 * (t % 1000.0) + rng.normal(0, 0.3, t.size)) * MIB
    path = csv(Made(t, value), tmp_path / "a.csv")

    assert only(judge_file(path, STEADY))[0] is VerdictKind.INCONCLUSIVE
    sure = JudgeOptions(steady_at="5m", never_restarted=True)
    assert only(judge_file(path, sure))[0] is not VerdictKind.LEAK


def test_a_counter_shows_that_falls_are_teeth_and_gives_the_rate_per_request(
    tmp_path: Path,
) -> None:
    series = made(300)
    rows = ["time,rss_bytes,requests_total"]
    pairs = zip(series.t_s, series.value, strict=True)
    rows += [f"{t},{v},{5 * t}" for t, v in pairs]

    (row,) = judge_file(series.write(tmp_path / "a.csv", rows), STEADY).rows

    (per_request,) = row.per_work
    assert per_request.per == "request"
    assert per_request.value == pytest.approx(300 * MIB / 18_000, rel=0.05)


def test_uneven_sampling_gaps_doubles_and_empty_cells_are_told_and_do_not_mislead(
    tmp_path: Path,
) -> None:
    series = made(300, hours=2.0)
    rows = ["time,rss_bytes"]
    for i, (t, v) in enumerate(zip(series.t_s, series.value, strict=True)):
        if 300 < i < 380:
            continue
        rows.append(f"{t},{'' if i % 50 == 7 else v}")
        if i == 100:
            rows.append(f"{t},{v}")
        if i == 200:
            rows.append(f"{series.t_s[i - 3]},{v}")
    verdict = judge_file(series.write(tmp_path / "a.csv", rows), STEADY)

    kind, rate, *_ = only(verdict)
    said = " ".join([*verdict.notes, *verdict.rows[0].notes])
    assert kind is VerdictKind.LEAK
    assert rate == pytest.approx(300 * MIB, rel=0.05)
    for word in ("went back in time", "1 row skipped as duplicates", "gap", "empty reading"):
        assert word in said


def test_a_threshold_decides_in_its_own_place(tmp_path: Path) -> None:
    path = csv(made(100, hours=2.0), tmp_path / "a.csv")

    generous = JudgeOptions(steady_at="5m", thresholds=("rss_bytes<200MiB/h",))
    strict = JudgeOptions(steady_at="5m", thresholds=("rss_bytes<50MiB/h",))

    assert only(judge_file(path, generous))[0] is VerdictKind.CLEAN
    assert only(judge_file(path, strict))[0] is VerdictKind.LEAK


def test_growth_that_is_surely_below_a_threshold_is_clean_and_asks_for_no_more_time(
    tmp_path: Path,
) -> None:
    t = np.arange(0.0, 24 * 3600.0, 60.0)
    value = 2e9 + 300 * 1024.0 * t / 3600.0 + 5e4 * np.random.default_rng(1).normal(size=t.size)
    file = tmp_path / "rss.csv"
    rows = (f"{at:.0f},{level:.0f}" for at, level in zip(t, value, strict=True))
    file.write_text("\n".join(["elapsed_s,rss_bytes", *rows]))

    (below,) = judge_file(str(file), JudgeOptions(thresholds=("rss_bytes<400KiB/h",))).rows
    (above,) = judge_file(str(file), JudgeOptions(thresholds=("rss_bytes<200KiB/h",))).rows
    (neither,) = judge_file(str(file), JudgeOptions()).rows

    assert [row.verdict.value for row in (below, above, neither)] == [
        "CLEAN",
        "LEAK",
        "INCONCLUSIVE",
    ]
    assert neither.result.needed_s is None


@pytest.mark.parametrize("released", [0.2, 0.4, 0.9])
@pytest.mark.parametrize("at", [0.3, 0.6])
@pytest.mark.parametrize(
    "name", ["OU (KB)", "heapUsed_bytes", 'jvm_memory_used_bytes{area="heap"}']
)
def test_one_collection_of_a_heap_is_one_tooth_and_too_few(
    tmp_path: Path, name: str, at: float, released: float
) -> None:
    t = np.arange(0.0, 3 * 3600.0, 30.0)
    grown = 3e5 * t / 3600.0
    heap = 2e5 + grown - released * 9e5 * at * (t >= at * t[-1])
    heap += 500.0 * np.random.default_rng(1).normal(size=t.size)
    file = tmp_path / "heap.csv"
    rows = (f"{moment:.0f},{level:.0f}" for moment, level in zip(t, heap, strict=True))
    quoted = name.replace('"', '""')
    file.write_text("\n".join([f'elapsed_s,"{quoted}"', *rows]))

    (row,) = judge_file(str(file), JudgeOptions(metrics=(name,))).rows

    assert row.verdict is VerdictKind.INCONCLUSIVE


def test_without_a_start_of_steady_state_half_an_hour_calls_no_leak(tmp_path: Path) -> None:
    path = csv(made(600, hours=0.5), tmp_path / "a.csv")

    assert only(judge_file(path, JudgeOptions()))[0] is VerdictKind.INCONCLUSIVE
    assert only(judge_file(path, STEADY))[0] is VerdictKind.LEAK


def test_falling_throughput_is_decay_and_shown_as_a_fall(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    t = np.arange(0.0, 7200.0, 10.0)
    value = 100 - 10 * t / 3600 + rng.normal(0, 0.5, t.size)
    rows = ["elapsed,req_per_s", *(f"{a},{b}" for a, b in zip(t, value, strict=True))]

    verdict = judge_file(Made(t, value).write(tmp_path / "a.csv", rows), STEADY)

    assert verdict.kind is VerdictKind.DEGRADED
    document = json.loads(series_json([verdict]))
    assert document["exit_code"] == 11
    assert document["files"][0]["metrics"][0]["rate_per_hour"]["value"] < -8
    assert "req\\_per\\_s" in render_markdown(series_document([verdict]))


@pytest.mark.parametrize(
    ("text", "ask", "said"),
    [
        ("", JudgeOptions(), "the file is empty"),
        ("1,2\n3,4\n", JudgeOptions(), "write a heading"),
        ("a,b\n1,2\n3,4\n", JudgeOptions(), "--time-column"),
        ("time,rss\n1,2\nlater,3\n4,5\n", JudgeOptions(), ":3: column time: 'later' is not a time"),
        (
            "time,rss\n1,x\n2,y\n",
            JudgeOptions(metrics=("rss",)),
            ":2: column rss: 'x' is not a number",
        ),
        ("time,rss\n1,2\n2,3\n", JudgeOptions(metrics=("rs",)), "did you mean rss?"),
        ("time,rss\n1,2\n2,3\n", JudgeOptions(thresholds=("rsss<1MiB/h",)), "did you mean rss?"),
        (
            "time,rss\n1,2\n2,3\n",
            JudgeOptions(thresholds=("rss>1",)),
            "--threshold rss>1: not a threshold; ",
        ),
        ("time,rss_kb\n1,2\n2,3\n", JudgeOptions(thresholds=("rss_kb<5/h",)), "is not a size"),
        ("time,rss\n1,2\n2,3\n", JudgeOptions(thresholds=("rss<5MiB/h",)), "--metric 'rss:MiB'"),
        ("time,rss\n1,2\n2,3\n", JudgeOptions(metrics=("rss:furlong",)), "'furlong' is not a unit"),
        ("time,rss\n1,2\n2,3\n", JudgeOptions(unit="stone"), "not a unit"),
        ("time,rss_mib\n1,2\n2,3\n", JudgeOptions(unit="stone"), "--unit stone: 'stone' is not"),
        ("time,rss\n1,2\n2,3\n", JudgeOptions(steady_at="soon"), "neither a duration"),
        (
            "time,rss\n1,2\n61,3\n",
            JudgeOptions(steady_at="10m"),
            "ends 1m after its start, so nothing would be judged",
        ),
        ("time,rss\n1,2\n2,3\n", JudgeOptions(time_column="when"), "no such column"),
        ('{"status":"error","error":"bad query"}', JudgeOptions(), "bad query"),
        (
            '{"status":"success","data":{"resultType":"vector","result":[]}}',
            JudgeOptions(),
            "vector",
        ),
        ('{"t":1,"rss":2}\n{broken\n{"t":2,"rss":3}\n', JudgeOptions(), ":2: not a JSON object"),
        ("[1, 2", JudgeOptions(), "starts like JSON"),
        (
            "time,a,b\n1,2\n2,3\n3,4\n4,5\n5,6\n",
            JudgeOptions(),
            ":2: 2 cells where the heading has 3",
        ),
    ],
)
def test_bad_input_is_told_with_its_place_and_what_to_do(
    tmp_path: Path, text: str, ask: JudgeOptions, said: str
) -> None:
    path = tmp_path / "series.txt"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(HybridbenchError) as caught:
        judge_file(str(path), ask)

    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert int(caught.value.exit_code) == 2


def test_a_series_of_a_few_readings_has_no_rate(tmp_path: Path) -> None:
    rows = ["elapsed,rss_bytes", *(f"{10 * i},{8e8 + 1e5 * i}" for i in range(10))]
    verdict = judge_file(
        Made(np.zeros(1), np.zeros(1)).write(tmp_path / "a.csv", rows), JudgeOptions()
    )

    document = json.loads(series_json([verdict]))

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert document["files"][0]["metrics"][0]["rate_per_hour"] is None
    assert "no estimate" in render_markdown(series_document([verdict]))
    assert "(95 %)" not in render_markdown(series_document([verdict]))


def test_the_headline_names_what_grows_and_by_how_much_and_what_is_undecided(
    tmp_path: Path,
) -> None:
    leaks = judge_file(csv(made(300.0), tmp_path / "leaks.csv"), STEADY)
    short = judge_file(csv(made(hours=0.1), tmp_path / "short.csv"), JudgeOptions())
    clean = judge_file(csv(made(hours=4.0), tmp_path / "clean.csv"), STEADY)

    both = series_document([leaks, short, clean])
    alone, several = str(series_document([leaks]).headline), str(both.headline)

    assert alone.startswith("rss_bytes grows by ")
    assert alone.endswith(" MiB/h")
    assert several.startswith("rss_bytes (leaks.csv) grows by ")
    assert several.endswith("; undecided: rss_bytes (short.csv)")
    assert any(str(note).startswith("rss_bytes (short.csv): ") for note in both.notes)
    (row,) = short.rows
    said = str(series_document([short]).headline)
    assert said == f"rss_bytes is undecided: {row.result.reason}"
    assert clean.kind is VerdictKind.CLEAN
    assert series_document([clean]).headline == "Growth is below the limit in the series"


def test_the_headline_of_a_stored_run_does_not_repeat_its_verdict() -> None:
    stored = FileVerdict("run", VerdictKind.INVALID, (), headline="too few samples")

    document = series_document([stored])

    assert (document.badge.word, document.headline) == ("INVALID", "too few samples")


def test_the_headline_of_a_level_that_must_not_fall_says_that_it_falls(tmp_path: Path) -> None:
    t = np.arange(0.0, 7200.0, 10.0)
    value = 100 - 10 * t / 3600 + np.random.default_rng(5).normal(0, 0.5, t.size)
    rows = ["elapsed,req_per_s", *(f"{a},{b}" for a, b in zip(t, value, strict=True))]

    verdict = judge_file(Made(t, value).write(tmp_path / "a.csv", rows), STEADY)

    document = series_document([verdict])
    assert str(document.headline).startswith("req_per_s falls by ")
    (why,) = (str(note) for note in document.notes if "models show growth" in str(note))
    assert why.endswith("(its fall counts as growth)")


@pytest.mark.parametrize("rare", [False, True])
def test_a_level_that_is_usually_0_is_clean(tmp_path: Path, rare: bool) -> None:
    t = made().t_s
    value = np.where((np.arange(t.size) % 40 == 3) & rare, 2.0, 0.0)
    rows = ["elapsed,num_ooms", *(f"{a},{b:.0f}" for a, b in zip(t, value, strict=True))]

    verdict = judge_file(Made(t, value).write(tmp_path / "a.csv", rows), STEADY)

    assert verdict.kind is VerdictKind.CLEAN


def test_a_number_of_cores_is_no_memory_whatever_unit_its_cells_have(tmp_path: Path) -> None:
    series = made(300)
    rows = ["time,cpu,memory"]
    rows += [
        f"{START + t},250m,{v / MIB:.0f}Mi" for t, v in zip(series.t_s, series.value, strict=True)
    ]

    verdict = judge_file(series.write(tmp_path / "a.csv", rows), STEADY)

    assert [(row.name, row.verdict) for row in verdict.rows] == [("memory", VerdictKind.LEAK)]
    assert verdict.not_judged == ("cpu",)


def test_a_column_called_like_a_counter_that_sinks_is_judged(tmp_path: Path) -> None:
    series = made()
    rng = np.random.default_rng(1)
    held = np.round(100 + series.t_s / 36 + rng.normal(0, 1, series.t_s.size))
    rows = ["time,lease_count,mem_total"]
    rows += [f"{START + t},{n},64" for t, n in zip(series.t_s, held, strict=True)]

    verdict = judge_file(series.write(tmp_path / "a.csv", rows), STEADY)

    assert [row.name for row in verdict.rows] == ["lease_count", "mem_total"]
    assert verdict.rows[0].verdict is VerdictKind.LEAK
    assert not any("work done" in note for note in verdict.notes)


def busy(leak_mib_per_h: float, path: Path, stuck_per_h: float = 0.0) -> str:
    """Write the memory of a busy server that takes 4 MiB for each request in flight."""
    series = made(leak_mib_per_h)
    rng = np.random.default_rng(7)
    running = np.zeros(series.t_s.size)
    for i in range(1, running.size):
        running[i] = max(0.0, 0.98 * running[i - 1] + 0.4 + rng.normal(0, 1.5))
    running = np.round(running + stuck_per_h * series.t_s / 3600)
    held = series.value + 4 * MIB * running
    rows = ["time,num_requests_running,rss_bytes"]
    rows += [
        f"{START + t},{r:.0f},{v:.0f}" for t, r, v in zip(series.t_s, running, held, strict=True)
    ]
    return series.write(path, rows)


@pytest.mark.parametrize(("leak", "kind"), [(0.0, VerdictKind.CLEAN), (100.0, VerdictKind.LEAK)])
def test_requests_in_flight_explain_memory_and_leave_nothing_undecided(
    tmp_path: Path, leak: float, kind: VerdictKind
) -> None:
    path = busy(leak, tmp_path / "a.csv")

    verdict = judge_file(path, STEADY)

    assert (verdict.kind, [row.name for row in verdict.rows]) == (kind, ["rss_bytes"])
    rate = verdict.rows[0].result.rate_per_hour
    assert rate is not None
    assert rate.lower <= leak * MIB <= rate.upper
    assert "the effect of requests in flight (num_requests_running) is subtracted" in verdict.notes
    asked = judge_file(path, JudgeOptions(("num_requests_running",), steady_at="5m"))
    assert asked.kind is VerdictKind.INCONCLUSIVE


@pytest.mark.parametrize(
    ("hours", "kind", "undecided"),
    [(0.0, VerdictKind.CLEAN, []), (0.2, VerdictKind.INCONCLUSIVE, ["ttft_seconds_p99"])],
)
def test_speed_that_varies_is_undecided_only_if_it_became_worse(
    tmp_path: Path, hours: float, kind: VerdictKind, undecided: list[str]
) -> None:
    series, rng = made(leak_mib_per_h=0.0), np.random.default_rng(3)
    ttft = rng.normal(0.5, 0.2, series.t_s.size) + hours * series.t_s / 3600
    hits = rng.uniform(0.4, 0.7, series.t_s.size)
    rows = ["time,rss_bytes,ttft_seconds_p99,node_load1,prefix_cache_hit_rate"]
    for t, rss, delay, hit in zip(series.t_s, series.value, ttft, hits, strict=True):
        rows.append(f"{START + t},{rss},{delay:.3f},{t % 7},{hit:.3f}")
    path = series.write(tmp_path / "a.csv", rows)

    verdict = judge_file(path, STEADY)

    rows_of = {row.name: row.verdict for row in verdict.rows}
    assert rows_of.pop("rss_bytes") is VerdictKind.CLEAN
    assert (verdict.kind, list(rows_of)) == (kind, undecided)
    assert "node_load1" in verdict.not_judged
    asked = judge_file(path, JudgeOptions(("prefix_cache_hit_rate",), steady_at="5m"))
    assert asked.kind is VerdictKind.INCONCLUSIVE
    # A rate in the unit "ratio" is not a change in percent.
    assert "100%" not in render_markdown(series_document([asked]))


def test_requests_that_stay_for_good_are_a_leak(tmp_path: Path) -> None:
    verdict = judge_file(busy(0.0, tmp_path / "a.csv", stuck_per_h=400.0), STEADY)

    verdicts = {row.name: row.verdict for row in verdict.rows}
    assert verdicts["num_requests_running"] is VerdictKind.LEAK
    assert verdicts["rss_bytes"] is VerdictKind.LEAK


def test_a_counter_is_one_in_a_file_with_the_newest_row_first(tmp_path: Path) -> None:
    series = made(leak_mib_per_h=300.0)
    rows = [f"{START + t},{v},{t}" for t, v in zip(series.t_s, series.value, strict=True)]
    head = "time,rss_bytes,requests_total"
    rising = series.write(tmp_path / "a.csv", [head, *rows])
    falling = series.write(tmp_path / "b.csv", [head, *rows[::-1]])

    first, second = judge_file(rising, STEADY), judge_file(falling, STEADY)

    assert [row.name for row in second.rows] == ["rss_bytes"]
    assert second.rows[0].per_work == first.rows[0].per_work
    assert len(second.rows[0].per_work) == 1


def test_what_is_left_must_not_fall_whatever_its_unit(tmp_path: Path) -> None:
    path = csv(made(leak_mib_per_h=-300.0), tmp_path / "a.csv", "heap_free", 1024.0)

    (row,) = judge_file(path, replace(STEADY, unit="KiB")).rows

    assert row.falls_are_bad
    assert row.verdict is VerdictKind.LEAK


def test_looking_at_names_does_not_grow_with_the_square_of_the_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def counted(name: str) -> str:
        nonlocal calls
        calls += 1
        return name

    monkeypatch.setattr(units, "bare_name", counted)

    def calls_for(owners: int) -> int:
        nonlocal calls
        rows = [f"{60 * i},pod{p},{p + 1},{i}" for i in range(9) for p in range(owners)]
        path = tmp_path / f"{owners}.csv"
        path.write_text("\n".join(["time,pod,mem_mib,handles", *rows]), encoding="utf-8")
        calls = 0
        judge_file(str(path), JudgeOptions(metrics=('mem_mib{pod="pod1"}',)))
        return calls

    assert calls_for(40) < 5 * calls_for(10)


@pytest.mark.parametrize("hours", [3, 4])
def test_a_step_an_hour_is_not_clean(hours: int, tmp_path: Path) -> None:
    """Two or three steps are not a leak yet, but not CLEAN either."""
    series = made(hours=hours)
    stepped = replace(series, value=series.value + 60 * MIB * (series.t_s // 3600))

    verdict = judge_file(csv(stepped, tmp_path / "steps.csv"), JudgeOptions())

    assert verdict.kind is VerdictKind.INCONCLUSIVE
