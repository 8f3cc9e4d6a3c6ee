"""Foreign time stamps are put in order, and breaks that no fit may cross are found."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.foundation.errors import ConfigError
from hybridbench.series.source import Source
from hybridbench.series.timeline import make_timeline


def test_a_second_recording_appended_to_the_first_begins_anew() -> None:
    t = np.concatenate([np.arange(0, 100.0), np.arange(0, 80.0)])

    line = make_timeline(t, Source("rows"))

    assert line.starts_s == (100.0,)
    assert np.all(np.diff(line.t_s) == 1.0)
    assert line.rows.size == 180


def test_a_clock_set_back_a_little_costs_a_few_rows() -> None:
    t = np.arange(0, 100.0)
    t[50:] -= 3.5

    line = make_timeline(t, Source("rows"))

    assert line.starts_s == ()
    assert np.all(np.diff(line.t_s) > 0)
    assert line.rows.size == 97


def test_a_file_with_the_newest_first_is_read_from_its_end() -> None:
    line = make_timeline(np.arange(10.0)[::-1], Source("rows"))

    assert line.rows.tolist() == list(range(9, -1, -1))
    assert line.t_s.tolist() == list(range(10))


def test_many_rows_of_one_time_are_several_processes() -> None:
    with pytest.raises(ConfigError, match="several processes"):
        make_timeline(np.repeat(np.arange(50.0), 3), Source("rows"))


@pytest.mark.parametrize("doubles", [0, 40])
def test_rows_in_no_order_are_sorted(doubles: int) -> None:
    t = np.random.default_rng(0).uniform(0, 1, 2000)
    t[:doubles] = t[-doubles:] if doubles else t[:0]

    source = Source("rows")

    timeline = make_timeline(t, source)

    np.testing.assert_array_equal(timeline.t_s, np.unique(t))
    np.testing.assert_array_equal(t[timeline.rows], timeline.t_s)
    assert timeline.starts_s == ()
    assert "sorted" in source.notes[0]


def test_rows_in_no_order_that_share_times_are_refused() -> None:
    with pytest.raises(ConfigError, match="sort the rows"):
        make_timeline(np.random.default_rng(0).integers(0, 900, 2000).astype(float), Source("rows"))


def test_an_older_recording_below_a_newer_one_is_sorted_and_one_beside_it_is_refused() -> None:
    t = 1.7e9 + np.arange(0.0, 100.0)

    line = make_timeline(np.concatenate([t + 1000, t]), Source("rows"), absolute=True)

    assert np.all(np.diff(line.t_s) > 0)
    assert line.starts_s == ()
    with pytest.raises(ConfigError, match="overlap"):
        make_timeline(np.concatenate([t, t + 50.5]), Source("rows"), absolute=True)


def test_the_hour_that_ends_summer_time_begins_anew_and_is_not_refused() -> None:
    t = 1.7e9 + 60.0 * np.arange(0.0, 300.0)
    t[150:] -= 3600.0

    assert make_timeline(t, Source("rows"), absolute=True).starts_s == (t[149] + 60.0,)
