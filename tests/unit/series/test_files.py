"""Tables of other tools: psrecord, mprof, docker stats, spreadsheets of another country."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridbench.errors import ConfigError
from hybridbench.series.files import SeriesFile, read_series

MIB = 2.0**20


def read(tmp_path: Path, text: str) -> SeriesFile:
    path = tmp_path / "series"
    path.write_text(text, encoding="utf-8")
    return read_series(str(path))


def test_the_log_of_psrecord_has_its_heading_behind_a_hash(tmp_path: Path) -> None:
    text = (
        "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n"
        "       0.000        0.000       12.500       30.000\n"
        "       1.000        3.000       13.500       30.000\n"
    )

    file = read(tmp_path, text)

    assert file.names() == ("CPU (%)", "Real (MB)", "Virtual (MB)")
    assert file.columns[1].value.tolist() == [12.5, 13.5]


def test_the_lines_of_mprof_are_memory_and_time(tmp_path: Path) -> None:
    file = read(tmp_path, "CMDLINE python x.py\nMEM 10.5 1700000000.1\nMEM 11.5 1700000001.1\n")

    assert file.names() == ("MEM (MiB)",)
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


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run"):
        read_series(str(tmp_path))
