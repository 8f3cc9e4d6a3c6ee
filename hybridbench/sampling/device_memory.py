"""Device memory by process, from NVIDIA's driver; needs the extra ``nvml``."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, cast

_DRIVER: Final = Path("/dev/nvidiactl")


class DeviceProcess(Protocol):
    """A process on one device; its memory is None if the driver does not account for it."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815  # NVML's own name


class Nvml(Protocol):
    """The part of the module ``pynvml`` that is used."""

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Sequence[DeviceProcess]: ...  # noqa: N802


def installed_nvml(driver: Path = _DRIVER) -> Nvml | None:
    """Return NVML if this machine has an NVIDIA driver and the module is installed."""
    if driver.exists():
        with suppress(ImportError):
            return cast(Nvml, importlib.import_module("pynvml"))
    return None


class DeviceMemory:
    """Reads from the driver how much memory each process holds, over all devices."""

    def __init__(self, load: Callable[[], Nvml | None] = installed_nvml) -> None:
        self._nvml = load()
        self._handles: list[Any] = []
        if self._nvml is not None:
            try:
                self._nvml.nvmlInit()
                count = self._nvml.nvmlDeviceGetCount()
                self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
            except Exception:  # NVMLError, from a module that may not be installed
                self._nvml = None

    def read(self) -> Mapping[int, int]:
        """Return bytes by pid, for the processes that the driver accounts for."""
        held: Counter[int] = Counter()
        for handle in self._handles if self._nvml is not None else ():
            # A device may be lost, or may not report processes.
            with suppress(Exception):
                assert self._nvml is not None
                for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    if process.usedGpuMemory is not None:
                        held[process.pid] += process.usedGpuMemory
        return held
