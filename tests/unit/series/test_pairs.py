"""Output that is repeated for each sample: /proc, /metrics, top, nvidia-smi dmon."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.foundation.errors import ConfigError
from hybridbench.series.files import SeriesFile, read_series
from hybridbench.series.judge import JudgeOptions, judge_file
from hybridbench.series.units import Role, meaning_of

MIB = 2.0**20


def read(tmp_path: Path, text: str, interval_s: float | None = None) -> SeriesFile:
    path = tmp_path / "series"
    path.write_text(text, encoding="utf-8")
    return read_series(str(path), interval_s=interval_s)


def values(file: SeriesFile) -> dict[str, list[float]]:
    return {c.name: c.value.tolist() for c in file.columns if not c.is_text}


def seconds(file: SeriesFile) -> list[float]:
    times = file.columns[0].t_s
    return [float(t - times[0]) for t in times]


@pytest.mark.parametrize("dated", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "VmRSS:\t  {} kB\nThreads:\t4\n",
        "Rss:     {} kB\nThreads: 4\n",
        "Name:\tpython\nTgid:\t42\nUid:\t0\t0\t0\t0\nVmRSS:\t{} kB\nThreads:\t4\n"
        "voluntary_ctxt_switches:\t9\n",
        "5649-7ffc ---p 00000000 00:00 0                [rollup]\nPss:   {} kB\nThreads: 4\n",
    ],
)
def test_lines_of_proc_are_in_kib_whatever_they_say(tmp_path: Path, text: str, dated: bool) -> None:
    samples = [text.format(500), text.format(502)]
    if dated:
        samples = [f"{1_800_000_000 + 10 * i}\n{sample}" for i, sample in enumerate(samples)]

    file = read(tmp_path, "".join(samples), interval_s=None if dated else 10.0)

    memory = file.columns[0].name
    assert values(file) == {memory: [500, 502], "Threads": [4, 4]}
    assert meaning_of(memory).factor == 1024
    assert seconds(file) == [0, 10]


@pytest.mark.parametrize(
    "moments",
    [
        "18000000{}",
        "18000000{}000",
        "Wed Nov 25 10:00:{} UTC 2026",
        "2026-11-25T10:00:{}Z",
    ],
)
def test_a_time_before_each_sample_needs_no_interval(tmp_path: Path, moments: str) -> None:
    first, second = "00", "10"
    text = f"{moments.format(first)}\nanon 8\n{moments.format(second)}\nanon 9\n"

    file = read(tmp_path, text)

    assert (values(file), seconds(file)) == ({"anon": [8, 9]}, [0, 10])


@pytest.mark.parametrize(
    ("moments", "rows", "expected"),
    [
        (["1800000000", "1800000010"], "8192", {"memory": [8192, 12288]}),
        (["1800000000", "1800000010"], "1800003584", {"memory": [1800003584, 1800007680]}),
        (["2026-11-25 10:00:00", "2026-11-25 10:00:10"], "8188", {"RSS": [8188, 12284]}),
        (
            ["Wed Nov 25 10:00:00 UTC 2026", "Wed Nov 25 10:00:10 UTC 2026"],
            "  PID   RSS COMMAND\n   42 {} python -m x",
            {"PID": [42, 42], "RSS": [8188, 12284]},
        ),
    ],
)
def test_a_date_before_each_call_of_ps_or_cat_is_its_time(
    tmp_path: Path, moments: list[str], rows: str, expected: dict[str, list[float]]
) -> None:
    size = 8188 if "{}" in rows else int(rows)
    rows = rows if "{}" in rows else "{}"
    text = f"{moments[0]}\n{rows.format(size)}\n{moments[1]}\n{rows.format(size + 4096)}\n"

    file = read(tmp_path, text)

    assert (values(file), seconds(file)) == (expected, [0, 10])


PAGE = """# HELP rss_bytes Resident memory.
# TYPE rss_bytes gauge
rss_bytes {rss}
vllm:request_success_total{{engine="0",model_name="a b"}} {done}
vllm:e2e_request_latency_seconds_bucket{{le="+Inf"}} 5
vllm:e2e_request_latency_seconds_sum 7.5
"""


def test_pages_of_metrics_follow_each_other(tmp_path: Path) -> None:
    text = PAGE.format(rss="1.5e+09", done=3) + PAGE.format(rss="NaN", done=4)
    text += "curl: (7) Failed to connect\n" + PAGE.format(rss=1600000000, done=5)

    file = read(tmp_path, text, interval_s=10.0)

    read_of = values(file)
    assert read_of["rss_bytes"][::2] == [1.5e9, 1.6e9]
    assert read_of['vllm:request_success_total{engine="0",model_name="a b"}'] == [3, 4, 5]
    assert not any("bucket" in name for name in read_of)
    assert "line" in file.notes[0]


def test_a_date_before_each_page_of_metrics_is_its_time(tmp_path: Path) -> None:
    pages = (PAGE.format(rss=f"{done}e9", done=done) for done in (3, 4))

    file = read(tmp_path, "".join(f"{1_800_000_000 + 10 * i}\n{p}" for i, p in enumerate(pages)))

    assert values(file)["rss_bytes"] == [3e9, 4e9]
    assert seconds(file) == [0, 10]


TOP = """top - 23:59:{second} up 10 days,  3:22,  1 user,  load average: 1.00, 1.01, 1.05
Tasks:   2 total,   0 running

    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND
   4242 root      20   0    6.1g   {res}   2000 S  99.0   5.0   1:02.00 python -m x
   4243 www       20   0    5000    700    600 S   0.0   0.0   0:01.00 nginx: worker

"""


def test_top_lists_the_memory_of_each_process_in_kib_or_with_a_unit(tmp_path: Path) -> None:
    text = TOP.format(second=50, res=1024) + TOP.format(second=58, res="0.5g")

    file = read(tmp_path, text)

    assert values(file)['RES{PID="4242"}'] == [MIB, 512 * MIB]
    nginx = next(column for column in file.columns if column.name == 'RES{PID="4243"}')
    assert (nginx.value.tolist(), nginx.usual_unit) == ([700, 700], "KiB")
    assert seconds(file) == [0, 8]


@pytest.mark.parametrize("title", ["", "Memory of my GPUs\n"])
@pytest.mark.parametrize("clock", [True, False])
def test_dmon_shows_the_memory_of_each_gpu(tmp_path: Path, clock: bool, title: str) -> None:
    def sample(second: int, used: int) -> str:
        time = f" 10:00:{second:02d} " if clock else " "
        return (
            f"#{' Time' if clock else ''} gpu   fb  bar1   sm\n"
            f"#{' HH:MM:SS' if clock else ''} Idx   MB    MB    %\n"
            f"{time}  0   {used}   2    97\n{time}  1   5   2   -\n"
        )

    file = read(tmp_path, title + sample(0, 70) + sample(10, 72), None if clock else 10.0)

    assert values(file)['memory.fb [MiB]{index="0"}'] == [70, 72]
    assert values(file)['memory.fb [MiB]{index="1"}'] == [5, 5]
    judged = {n.partition("{")[0] for n in file.names() if meaning_of(n).role is Role.LEVEL}
    assert judged == {"memory.fb [MiB]", "memory.bar1 [MiB]"}
    assert seconds(file) == [0, 10]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("procs -----------memory----------\n r b free\n1 0 5\n", "the output of vmstat"),
        ("   total   used   free   shared\nMem: 5 4 3 2\n", "the output of free"),
        ("Mem: 64000 3277 5\nMem: 64000 3278 5\n", "the output of free"),
        ("[2026-11-25 10:00:00 TP0] Decode batch, #running-req: 4\n", "is a log"),
        ("(APIServer pid=1) INFO 11-25 10:00:00 [loggers.py:257] Engine 000: x\n", "is a log"),
        ("Nov 25 10:00:00 host puma[4321]: [app] rss=5000\n", "is a log"),
    ],
)
def test_what_is_no_series_of_a_process_is_refused_with_what_to_record(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"{said}.*while sleep 10"):
        read(tmp_path, text, interval_s=10.0)


def test_the_times_of_samples_are_read(tmp_path: Path) -> None:
    # promtool writes one series after the other, with times in seconds; cAdvisor in milliseconds.
    dump = "# TYPE rss_bytes gauge\n" + "".join(
        f'rss_bytes{{job="{job}"}} {value} {1700000000 + 10 * row}.500\n'
        for job, value in (("a", 5), ("b", 6))
        for row in range(3)
    )
    page = 'rss_bytes{id="a"} 5 1700000000037\nrss_bytes{id="a"} 6 1700000060037\n'

    file = read(tmp_path, dump)
    assert seconds(file) == [0, 10, 20]
    assert values(file) == {'rss_bytes{job="a"}': [5] * 3, 'rss_bytes{job="b"}': [6] * 3}
    assert seconds(read(tmp_path, f"# TYPE rss_bytes gauge\n{page}")) == [0, 60]


def test_what_a_page_declares_a_counter_is_no_level(tmp_path: Path) -> None:
    page = (
        "# TYPE dispatched counter\ndispatched {0}\n"
        '# TYPE energy counter\nenergy{{gpu="0"}} {0}\n# TYPE held gauge\nheld {0}\n'
    )
    (tmp_path / "series").write_text("".join(page.format(7 * i) for i in range(120)))

    verdict = judge_file(str(tmp_path / "series"), JudgeOptions(interval_s=60.0))

    assert [row.name for row in verdict.rows] == ["held"]
