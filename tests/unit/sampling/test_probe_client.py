"""The account of looks, and what is decided before each one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.sampling.probe_client import (
    Budget,
    ProbeError,
    _changes,
    _device_ranges,
    probe_environment,
)

SMAPS = """\
7f0000000000-7f0000200000 rw-s 00000000 00:05 12 /dev/nvidia0
Size: 2048 kB
VmFlags: rd wr sh mr mw me ms
7f0000200000-7f0000300000 rw-s 00000000 00:05 12 /dev/nvidiactl
VmFlags: rd wr sh io pf
7f0000300000-7f0000400000 rw-s 00000000 00:05 12 /dev/nvidia-uvm
VmFlags: rd wr sh dc
7f0000400000-7f0000500000 rw-p 00000000 00:00 0
VmFlags: rd wr mr mw me ac
"""


def test_the_next_look_waits_until_pauses_and_processor_are_a_small_share() -> None:
    now_s = [100.0]
    account = Budget(lambda: now_s[0])
    first_s = account.wait_s()

    account.charge(pause_s=0.05, cpu_s=1.0)

    assert first_s == 0.0
    assert account.wait_s() == pytest.approx(20.0)
    now_s[0] += 20.0
    assert account.wait_s() == 0.0
    assert account.shares() == pytest.approx((0.0025, 0.05))
    account.charge(pause_s=0.15)
    assert account.wait_s() == pytest.approx(20.0)
    assert (account.looks, account.longest_pause_s) == (2, 0.15)


def test_mappings_of_devices_stay_out_of_a_fork_where_that_can_be_undone(tmp_path: Path) -> None:
    for name in ("maps", "smaps"):
        (tmp_path / name).write_text(SMAPS)

    assert _device_ranges(tmp_path) == [[0x7F0000000000, 2 << 20]]
    # File names are bytes, and may contain what Unicode calls a line separator.
    for name in ("maps", "smaps"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"7f0000500000-7f0000600000 r--p 00000000 00:05 13 /caf\xe9\xe2\x80\xa8\n")
    assert _device_ranges(tmp_path) == [[0x7F0000000000, 2 << 20]]
    assert _device_ranges(tmp_path / "absent") == []


def test_a_census_has_what_differs_from_the_one_before() -> None:
    assert _changes({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "d": 4}, 0) == {
        "b": 5,
        "c": 0,
        "d": 4,
    }


def test_the_path_of_the_command_stays_behind_that_of_the_probe(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    environment = probe_environment(folder, ["serve"], {"PYTHONPATH": "own", "KEPT": "1"})

    assert environment["PYTHONPATH"].split(":")[1:] == ["own"]
    assert environment["KEPT"] == "1"
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ProbeError, match="cannot be made"):
        probe_environment(Path("/proc/sockets"), [], {})
