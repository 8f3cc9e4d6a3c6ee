"""The profile of two steps on a CPU, and of made-up events of a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from benchmarks.batches import Traffic
from tools.step_profile import Named, Share, StepProfile, _host, _kernels, lines, profile_steps

SMALL = Traffic(4, 16, 20, 3, 80, "float32", ())


@dataclass
class Event:
    key: str
    count: int
    self_device_time_total: float
    self_cpu_time_total: float
    device: str = "CPU"
    is_user_annotation: bool = False
    device_type: Named = field(init=False)

    def __post_init__(self) -> None:
        self.device_type = SimpleNamespace(name=self.device)


def test_the_largest_prefill_step_and_a_full_decode_step_are_profiled() -> None:
    found = profile_steps("qwen3-next-nano", "cpu", SMALL, rounds=1)

    assert [(step.phase, step.tokens) for step in found] == [("prefill", 80), ("decode", 4)]
    for step in found:
        assert step.step_ms > 0
        assert step.kernels == ()
        assert {"aten::mm", "aten::mul"} <= {share.name for share in step.host}
        assert list(step.host) == sorted(step.host, key=lambda share: -share.ms)


def test_events_of_the_device_and_of_the_host_are_kept_apart() -> None:
    events = [
        Event("_scan_kernel", 6, 3000.0, 0.0, "CUDA"),
        Event("Memcpy HtoD", 2, 4000.0, 0.0, "CUDA"),
        Event("ProfilerStep", 1, 9000.0, 0.0, "CUDA", is_user_annotation=True),
        # Device time that an operator started is counted with the kernel.
        Event("aten::mm", 9, 500.0, 100.0),
        Event("cudaStreamSynchronize", 1, 0.0, 700.0),
        Event("aten::view", 9, 0.0, 0.0),
    ]

    assert _kernels(events) == (Share("Memcpy HtoD", 2, 4.0), Share("_scan_kernel", 6, 3.0))
    assert _host(events) == (Share("cudaStreamSynchronize", 1, 0.7), Share("aten::mm", 9, 0.1))


def test_the_text_says_how_long_the_device_works_and_the_host_waits() -> None:
    step = StepProfile(
        "decode", 64, 10.0, (Share("_scan", 6, 3.0), Share("_conv", 2, 1.0)),
        (Share("cudaStreamSynchronize", 1, 7.0), Share("aten::mm", 9, 2.0)),
    )  # fmt: skip

    said = list(lines([step]))

    assert said[0] == "decode step of 64 tokens: 10.00 ms"
    assert said[1] == "the device works for 4.00 ms of them (40%), in 8 kernels and copies"
    assert said[3].split() == ["_scan", "6", "3.000", "75%"]
    assert "spends 2.00 ms in 10 calls of PyTorch and CUDA, and 7.00 ms waiting" in said[5]
    assert said[7].split() == ["cudaStreamSynchronize", "1", "7.000", "78%"]
