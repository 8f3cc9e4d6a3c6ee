"""Tables of other tools: psrecord, mprof, ps, nvidia-smi, docker stats, foreign spreadsheets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hybridbench.foundation.errors import ConfigError, ErrorCode, UsageError
from hybridbench.series.files import SeriesFile, read_series

MIB = 2.0**20


def read(tmp_path: Path, text: str, interval_s: float | None = None) -> SeriesFile:
    path = tmp_path / "series"
    path.write_bytes(text.encode())
    return read_series(str(path), interval_s=interval_s)


def values(file: SeriesFile) -> dict[str, list[tuple[float, float]]]:
    """Return times relative to the first, and numbers; cells that were not read are left out."""
    zero_s = min(float(column.t_s[0]) for column in file.columns)
    return {
        column.name: [
            (float(t) - zero_s, float(v))
            for t, v in zip(column.t_s, column.value, strict=True)
            if np.isfinite(v)
        ]
        for column in file.columns
        if not column.is_text
    }


def test_the_log_of_psrecord_has_its_heading_behind_a_hash(tmp_path: Path) -> None:
    text = (
        "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n"
        "       0.000        0.000       12.500       30.000\n"
        "       1.000        3.000       13.500       30.000\n"
    )

    file = read(tmp_path, text)

    assert file.names() == ("CPU (%)", "Real (MB)", "Virtual (MB)")
    assert file.columns[1].value.tolist() == [12.5, 13.5]


BANNER = "Linux 6.1.0-18-amd64 (gpu-7) \t11/25/2026 \t_x86_64_\t(64 CPU)\n\n"
PIDSTAT = "   UID       PID     VSZ     RSS   %MEM  Command\n"


def test_pidstat_repeats_its_heading_and_ends_with_an_average(tmp_path: Path) -> None:
    text = (
        f"{BANNER}11:59:40 PM{PIDSTAT}11:59:50 PM  0  42  9000  5000  1.3  my python\n"
        f"12:00:00 AM  0  42  9000  5001  1.3  my python\n\n"
        f"12:00:00 AM{PIDSTAT}12:00:10 AM  0  42  9000  5002  1.3  my python\n"
        "Average:  0  42  9000  5001  1.3  my python\n"
    )

    file = read(tmp_path, text)

    assert values(file)["RSS"] == [(0.0, 5000.0), (10.0, 5001.0), (20.0, 5002.0)]
    assert [c.usual_unit for c in file.columns if c.name in {"RSS", "VSZ"}] == ["KiB", "KiB"]
    assert any("pidstat" in note for note in file.notes)


def test_pidstat_in_one_table_has_rows_of_several_processes(tmp_path: Path) -> None:
    heading = f"# Time{PIDSTAT}"
    text = BANNER + "".join(
        f"{heading}{1_700_000_000 + 10 * i}  0  42  9000  {5000 + i}  1.3  a\n"
        f"{1_700_000_000 + 10 * i}  0  43  9000  700  1.3  b\n\n"
        for i in range(3)
    )

    file = read(tmp_path, text)

    assert [v for _, v in values(file)['RSS{PID="42"}']] == [5000.0, 5001.0, 5002.0]
    assert [v for _, v in values(file)['RSS{PID="43"}']] == [700.0] * 3


def test_two_reports_of_pidstat_in_one_file_are_refused(tmp_path: Path) -> None:
    text = f"{BANNER}10:00:00{PIDSTAT}10:00:10  0  42  9  5  1.3  a\n10:00:00  UID  PID  %CPU\n"

    with pytest.raises(ConfigError, match=r"series:5: another report begins"):
        read(tmp_path, text)


def test_words_with_a_number_here_and_there_are_not_several_reports(tmp_path: Path) -> None:
    text = "name: x\nseed: 1\nnote of a kind\nsteps: 20\nanother note\nthe third of them\n" * 4

    with pytest.raises(ConfigError, match="is not a table, not JSON and not a list of names"):
        read(tmp_path, text)


def test_the_lines_of_mprof_are_memory_and_time(tmp_path: Path) -> None:
    file = read(tmp_path, "CMDLINE python x.py\nMEM 10.5 1700000000.1\nMEM 11.5 1700000001.1\n")

    assert file.names() == ("process", "MEM (MiB)")
    assert np.diff(file.columns[0].t_s).tolist() == pytest.approx([1.0])


def test_cells_may_tell_their_own_unit(tmp_path: Path) -> None:
    file = read(tmp_path, "time,MEM USAGE\n1,12.5MiB / 2GiB\n2,1GiB / 2GiB\n3,--\n")

    (column,) = file.columns
    assert column.in_bytes
    assert column.value[:2].tolist() == [12.5 * MIB, 1024 * MIB]
    assert np.isnan(column.value[2])


def test_semicolons_bring_decimal_commas(tmp_path: Path) -> None:
    file = read(tmp_path, "time;rss\n1;2,5\n2;3,5\n")

    assert file.columns[0].value.tolist() == [2.5, 3.5]


def test_samples_of_a_run_are_taken_apart_by_metric(tmp_path: Path) -> None:
    text = '{"t":1,"m":{"a":1}}\n{"t":2,"m":{"a":2,"b":5}}\n{"t":3,"m":{"b":6}}\n{"t":4,"m":{"a'

    file = read(tmp_path, text)

    assert [(c.name, c.t_s.tolist()) for c in file.columns] == [("a", [1, 2]), ("b", [2, 3])]
    assert "cut short" in file.notes[0]


def test_series_of_one_prometheus_metric_are_told_apart_by_their_labels(tmp_path: Path) -> None:
    text = (
        '[{"metric":{"__name__":"m","job":"x","pod":"a"},"values":[[1,"2"],[2,"NaN"],[3,"4"]]},'
        '{"metric":{"__name__":"m","job":"x","pod":"b"},"values":[[1,"2"],[2,"3"]]}]'
    )

    assert read(tmp_path, text).names() == ('m{pod="a"}', 'm{pod="b"}')


def test_a_heading_in_the_middle_and_a_torn_end_are_told(tmp_path: Path) -> None:
    file = read(tmp_path, "time,rss\n1,2\n2,3\ntime,rss\n3,4\n4,5\n5")

    assert file.columns[0].value.tolist() == [2, 3, 4, 5]
    assert len(file.notes) == 2


def test_only_a_file_that_is_too_large_is_to_be_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "series.csv.gz"
    damaged.write_bytes(b"\x1f\x8b\x08\x00" + bytes(20))
    with pytest.raises(ConfigError, match=r"damaged gzip file .*; give the numbers as CSV or JSON"):
        read_series(str(damaged))
    with pytest.raises(ConfigError, match=r"is a device, .*; give the numbers as CSV or JSON"):
        read_series("/dev/null")

    monkeypatch.setattr("hybridbench.series.files._BYTES_MAX", 8)
    with pytest.raises(ConfigError, match=r"is larger than .*; keep the columns that matter"):
        read(tmp_path, "time,rss\n1,2\n2,3\n")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read_series(str(tmp_path))
    assert refused.value.code is ErrorCode.NOT_FOUND


NVIDIA_SMI = (
    "timestamp, index, name, memory.used [MiB], utilization.gpu [%], power.draw [W]\n"
    "2026/11/23 10:00:00.000, 0, NVIDIA H200, 1234 MiB, 12 %, 71.25 W\n"
    "2026/11/23 10:00:00.004, 1, NVIDIA H200, 5 MiB, 0 %, [N/A]\n"
    "\n"
    "2026/11/23 10:00:10.000, 0, NVIDIA H200, 1236 MiB, 90 %, 72.00 W\n"
    "2026/11/23 10:00:10.004, 1, NVIDIA H200, [Unknown Error], 0 %, [N/A]\n"
    "2026/11/23 10:00:20.000, 0, NVIDIA H200, 1238 MiB, 95 %, 72.50 W\n"
    "2026/11/23 10:00:20.004, 1, NVIDIA H200, 7 MiB, 0 %, [N/A]\n"
)


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_each_gpu_of_nvidia_smi_is_a_series(tmp_path: Path, units: bool, ending: str) -> None:
    head, rows = NVIDIA_SMI.split("\n", 1)
    if not units:
        rows = rows.replace(" MiB", "").replace(" %", "").replace(" W", "")

    file = read(tmp_path, f"{head}\n{rows}".replace("\n", ending))

    read_of = values(file)
    assert read_of['memory.used [MiB]{index="0"}'] == [(0, 1234), (10, 1236), (20, 1238)]
    assert [v for _, v in read_of['memory.used [MiB]{index="1"}']] == [5, 7]
    assert [v for _, v in read_of['power.draw [W]{index="0"}']] == [71.25, 72.0, 72.5]
    assert read_of['power.draw [W]{index="1"}'] == []
    assert not any(column.in_bytes for column in file.columns)


def test_one_gpu_has_no_labels_and_needs_an_interval_without_a_timestamp(tmp_path: Path) -> None:
    text = "index, memory.used [MiB]\n3, 10 MiB\n3, 12 MiB\n"

    file = read(tmp_path, text, interval_s=5.0)

    assert values(file)["memory.used [MiB]"] == [(0, 10), (5, 12)]
    with pytest.raises(ConfigError, match="--interval"):
        read(tmp_path, text)


def test_rows_of_nvidia_smi_without_a_heading_need_a_unit(tmp_path: Path) -> None:
    rows = NVIDIA_SMI.split("\n", 1)[1]

    assert [v for _, v in values(read(tmp_path, rows.replace(" W", "%")))['memory{id="1"}']]
    with pytest.raises(ConfigError, match="without noheader"):
        read(tmp_path, rows.replace(" MiB", ""))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" 5000\n 5008\n\n 5004\n", {"RSS": [(0, 5000), (10, 5008), (20, 5004)]}),
        ("   RSS\r\n500\r\n   RSS\r\n502\r\n", {"RSS": [(0, 500), (10, 502)]}),
        (
            "    PID\n   12 500\n    7 100\n   12 502\n   13 900\n    7 101\n   13 901\n",
            {
                'RSS{PID="12"}': [(0, 500), (10, 502)],
                'RSS{PID="7"}': [(0, 100), (10, 101)],
                'RSS{PID="13"}': [(10, 900), (20, 901)],
            },
        ),
        (
            "   12 500\n   12 502\n   19 100\n   19 101\n",
            {
                "PID": [(0, 12), (10, 12), (20, 19), (30, 19)],
                "RSS": [(0, 500), (10, 502), (20, 100), (30, 101)],
            },
        ),
        (
            "  RSS     TIME COMMAND\n500 00:00:01 python -m x\n502 00:00:01 python -m x\n",
            {"RSS": [(0, 500), (10, 502)]},
        ),
    ],
)
def test_what_ps_prints_is_memory_in_kib(
    tmp_path: Path, text: str, expected: dict[str, list[tuple[float, float]]]
) -> None:
    file = read(tmp_path, text, interval_s=10.0)

    assert values(file) == expected
    assert {c.usual_unit for c in file.columns if c.name.startswith("RSS")} == {"KiB"}


def test_a_time_before_each_number_of_ps_needs_no_interval(tmp_path: Path) -> None:
    text = "1800000000 5000\n1800000010 5004\n"

    assert values(read(tmp_path, text)) == {"RSS": [(0, 5000), (10, 5004)]}
    with pytest.raises(UsageError, match="already has times"):
        read(tmp_path, text, interval_s=10.0)


@pytest.mark.parametrize(
    "text",
    [
        *("1.5\n2.5\n", "-1\n-2\n", "0 500\n10 502\n", "12 500 1\n12 502 1\n", "12,5\n12,6\n"),
        # Byte counts above 2^31 are not seconds since 1970.
        "0.5 2995412992\n1.5 3005054976\n",
        # The id is no measurement where a size beside it is not read.
        "42 a 512M*\n42 a 513M*\n",
        "root 42 9.0 1.2 500 400 ? Sl 10:00 a b\nroot 42 9.0 1.2 500 401 ? Sl 10:00 a b\n",
    ],
)
def test_numbers_that_ps_cannot_have_printed_need_a_heading(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="write a heading"):
        read(tmp_path, text, interval_s=10.0)


def test_rows_of_several_processes_that_take_turns_are_a_series_each(tmp_path: Path) -> None:
    text = "time,pid,rss\n1,7,10\n1,8,20\n2,7,11\n2,8,21\n"

    assert values(read(tmp_path, text)) == {
        'rss{pid="7"}': [(0, 10), (1, 11)],
        'rss{pid="8"}': [(0, 20), (1, 21)],
    }


def test_rows_of_more_processes_than_anybody_reads_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{pid} {pid + 7}\n" for pid in range(1, 300))

    with pytest.raises(ConfigError, match=r'rows of 299 series, such as \{PID="1"\}; keep'):
        read(tmp_path, f"PID RSS\n{rows}PID RSS\n{rows}", interval_s=10.0)


def test_an_index_of_rows_is_no_gpu(tmp_path: Path) -> None:
    text = "time,index,rss\n1,0,10\n2,1,20\n3,0,11\n4,1,21\n"

    assert read(tmp_path, text).names() == ("index", "rss")


@pytest.mark.parametrize("heading", ["NAMESPACE NAME CPU(cores) MEMORY(bytes)", "host name c rss"])
def test_rows_of_several_containers_that_take_turns_are_a_series_each(
    tmp_path: Path, heading: str
) -> None:
    text = f"{heading}\n" + "".join(f"x a 250m {i}Mi\nx b 1m 7Mi\n" for i in (1, 2, 4))

    file = read(tmp_path, text, interval_s=10.0)

    name, memory = heading.split()[1], heading.split()[3]
    assert values(file)[f'{memory}{{{name}="a"}}'] == [(0, MIB), (10, 2 * MIB), (20, 4 * MIB)]
    assert values(file)[f'{memory}{{{name}="b"}}'] == [(0, 7 * MIB), (10, 7 * MIB), (20, 7 * MIB)]


def test_series_below_each_other_are_told_apart_where_the_times_begin_again(tmp_path: Path) -> None:
    text = "Series,Time,Value\na,1,10\na,2,11\nb,1,20\nb,2,21\n"

    assert values(read(tmp_path, text)) == {
        "a": [(0, 10), (1, 11)],
        "b": [(0, 20), (1, 21)],
    }


def test_a_name_that_follows_another_in_time_is_no_second_series(tmp_path: Path) -> None:
    text = "time,pod,rss\n1,a,10\n2,a,11\n3,b,20\n4,b,21\n"

    assert values(read(tmp_path, text)) == {"rss": [(0, 10), (1, 11), (2, 20), (3, 21)]}


def test_a_name_that_follows_another_names_no_values(tmp_path: Path) -> None:
    text = "time,name,value\n1,a,10\n2,a,11\n3,b,20\n4,b,21\n"

    assert values(read(tmp_path, text))["value"] == [(0, 10), (1, 11), (2, 20), (3, 21)]


@pytest.mark.parametrize("before", ["", "1800000000 "])
def test_numbers_in_whole_pages_are_bytes_and_not_those_of_ps(tmp_path: Path, before: str) -> None:
    text = f"{before}8192\n{before.replace('00 ', '10 ')}1064960\n"

    file = read(tmp_path, text, None if before else 10.0)

    assert values(file) == {"memory": [(0, 8192), (10, 1064960)]}
    assert file.columns[0].usual_unit == "bytes"
    assert any("--unit KiB" in note for note in file.notes)


def test_the_time_of_influx_is_the_one_of_the_sample(tmp_path: Path) -> None:
    text = (
        "#group,false,false,true,false,false,true\n#default,_result,,,,,\n"
        ",result,table,_start,_time,_value,_field\n"
        ",,0,2026-01-31T12:00:00Z,2026-01-31T12:00:10Z,5,rss\n"
        ",,0,2026-01-31T12:00:00Z,2026-01-31T12:00:20Z,6,rss\n"
    )

    assert values(read(tmp_path, text))["rss"] == [(0, 5), (10, 6)]


@pytest.mark.parametrize("text", ["time rss\n1 5\n2 6\n", "time  my rss\n1 5\n2 6\n"])
def test_blanks_part_columns_and_may_stand_in_their_names(tmp_path: Path, text: str) -> None:
    assert [list(v) for v in values(read(tmp_path, text)).values()] == [[(0, 5), (1, 6)]]


def test_the_table_of_docker_has_blanks_in_its_cells(tmp_path: Path) -> None:
    sample = (
        "CONTAINER ID   NAME     CPU %     MEM USAGE / LIMIT   NET I/O\n"
        "3f4e5d6c7b8a   engine   99.12%    {}MiB / 8GiB    1.2MB / 3.4MB\n"
        "9a8b7c6d5e4f   redis    0.10%     7MiB / 8GiB       0B / 0B\n"
    )

    file = read(tmp_path, "".join(map(sample.format, (5, 6))), interval_s=10.0)

    memory = 'MEM USAGE / LIMIT{NAME="engine"}'
    assert values(file)[memory] == [(0, 5 * MIB), (10, 6 * MIB)]


def test_json_may_be_one_list_of_objects(tmp_path: Path) -> None:
    rows = [{"time": 1, "mem": {"rss": 5}, "gpus": [1]}, {"time": 3, "mem": {"rss": 6}}]

    for document in (rows, {"Label": "x", "Datapoints": rows}):
        file = read(tmp_path, json.dumps(document, indent=1))
        assert values(file) == {"mem.rss": [(0, 5), (2, 6)]}
        assert file.notes == ("lists are not read: gpus",)


@pytest.mark.parametrize(
    ("heading", "cells"),
    [
        ("time,rss", ['1,"1,023"', '2,"1,024"']),
        ("time,rss", ['1,"1,023.0"', "2,1024"]),
        ("time;rss", ["1;1.023,0", "2;1.024,0"]),
        ("time;rss", ["1;1,023,000", "2;1,024,000"]),
    ],
)
def test_marks_between_thousands_are_no_decimal_marks(
    tmp_path: Path, heading: str, cells: list[str]
) -> None:
    (column,) = read(tmp_path, "\n".join([heading, *cells])).columns

    assert column.value.tolist() in ([1023, 1024], [1_023_000, 1_024_000])


@pytest.mark.parametrize(
    "above", ["sep=,\n", "Label,rss\nID,m1\n", '"Host","a"\n\n"epoch","memory"\n']
)
def test_lines_above_the_heading_are_left_out_and_told(tmp_path: Path, above: str) -> None:
    file = read(tmp_path, f"{above}Timestamp,rss\n1,5\n2,6\n")

    assert values(file) == {"rss": [(0, 5), (1, 6)]}
    assert f"line {above.count(chr(10)) + 1}" in file.notes[0]


def test_a_date_and_a_time_of_day_make_one_time(tmp_path: Path) -> None:
    text = "Date,Time,rss\n2026-01-31,23:59:59,5\n2026-02-01,00:00:01,6\n"

    assert values(read(tmp_path, text)) == {"rss": [(0, 5), (2, 6)]}


def test_elapsed_times_of_ps_grow_from_minutes_to_days(tmp_path: Path) -> None:
    text = "ELAPSED RSS\n59:50 5\n01:00:00 6\n1-00:00:00 7\n"

    assert values(read(tmp_path, text)) == {"RSS": [(0, 5), (10, 6), (86400 - 3590, 7)]}


def test_a_file_in_utf_16_is_read(tmp_path: Path) -> None:
    path = tmp_path / "series"
    path.write_bytes("time,rss\r\n1,5\r\n2,6\r\n".encode("utf-16"))

    assert values(read_series(str(path))) == {"rss": [(0, 5), (1, 6)]}


@pytest.mark.parametrize("name", ["rank", "worker_id", "gpu", "shard"])
def test_rows_of_one_moment_are_told_apart_by_whatever_numbers_them(
    tmp_path: Path, name: str
) -> None:
    text = f"time,rss,{name}\n" + "".join(f"{t},{t},0\n{t},7,1\n" for t in range(1, 6))

    assert values(read(tmp_path, text)) == {
        f'rss{{{name}="0"}}': [(t, t + 1) for t in range(5)],
        f'rss{{{name}="1"}}': [(t, 7) for t in range(5)],
    }


def test_ranks_that_take_turns_need_no_times(tmp_path: Path) -> None:
    text = "rank,rss\n" + "0,5\n1,7\n" * 3

    assert values(read(tmp_path, text, interval_s=10.0)) == {
        'rss{rank="0"}': [(0, 5), (10, 5), (20, 5)],
        'rss{rank="1"}': [(0, 7), (10, 7), (20, 7)],
    }


def test_doubled_rows_are_no_series_of_their_own(tmp_path: Path) -> None:
    text = "time,state,rss\n" + "".join(f"{t},{t % 2},{t}\n" * 2 for t in range(1, 9))

    assert read(tmp_path, text).names() == ("state", "rss")


def test_rows_that_stand_twice_in_no_order_count_once(tmp_path: Path) -> None:
    rows = [f"{1_790_000_000 + 60 * t},{t}" for t in range(100)]
    rows = [(rows * 2)[i] for i in np.random.default_rng(0).permutation(200)]

    (column,) = read(tmp_path, "\n".join(["time,rss_mib", *rows])).columns

    np.testing.assert_array_equal(column.value, np.arange(100))


@pytest.mark.parametrize("gap", ["na", "-"])
def test_a_gap_in_a_column_without_a_heading_is_no_reading(tmp_path: Path, gap: str) -> None:
    text = f"1800000000 5000\n1800000010 {gap}\n1800000020 5004\n1800000030 5008\n"

    assert values(read(tmp_path, text)) == {"RSS": [(0, 5000), (20, 5004), (30, 5008)]}
