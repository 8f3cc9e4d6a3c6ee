"""Device memory by process, with a stand-in for the driver's library."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridbench.sampling.device_memory import DeviceMemory, DeviceProcess, installed_nvml
from hybridbench.sampling.process_tree import ProcessTree


@dataclass
class OnDevice:
    pid: int
    usedGpuMemory: int | None  # noqa: N815


class FakeNvml:
    """A fake NVML with two devices, the second of which can be lost."""

    def __init__(self, first: Sequence[OnDevice], second: Sequence[OnDevice] | None) -> None:
        self.devices = [first, second]
        self.driver = True

    def nvmlInit(self) -> None:
        if not self.driver:
            raise RuntimeError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Sequence[DeviceProcess]:
        found = self.devices[handle]
        if found is None:
            raise RuntimeError("GPU is lost")
        return found


def test_a_process_holds_memory_of_every_device() -> None:
    nvml = FakeNvml([OnDevice(7, 100), OnDevice(8, 5)], [OnDevice(7, 20)])

    assert DeviceMemory(lambda: nvml).read() == {7: 120, 8: 5}


def test_what_the_driver_does_not_account_for_is_absent() -> None:
    nvml = FakeNvml([OnDevice(7, None), OnDevice(8, 5)], None)

    assert DeviceMemory(lambda: nvml).read() == {8: 5}


def test_without_library_or_driver_there_is_nothing(tmp_path: Path) -> None:
    nvml = FakeNvml([OnDevice(7, 100)], [])
    nvml.driver = False

    assert DeviceMemory(lambda: nvml).read() == {}
    assert DeviceMemory(lambda: None).read() == {}
    assert installed_nvml(tmp_path / "no-driver") is None


def test_a_process_of_a_tree_has_its_device_memory() -> None:
    nvml = FakeNvml([OnDevice(os.getpid(), 100), OnDevice(1, 7)], [])

    (seen, *_) = ProcessTree(os.getpid(), device=DeviceMemory(lambda: nvml)).read()

    assert seen.m["device_used_bytes"] == 100
