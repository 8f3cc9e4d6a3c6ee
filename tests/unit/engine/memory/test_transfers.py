"""The thread that copies while steps run."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial

import pytest
import torch

from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.pinned import to_device, to_host
from hybridbench.engine.memory.transfers import Finished, SideStreamTransfers, ThreadedTransfers
from hybridbench.engine.models.registry import build_model
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import HiCache
from tests.builders import NANO_ENGINE, NANO_MODEL
from tests.unit.engine.kernels.agreement import DEVICES, device_of


def test_copies_run_in_order_on_another_thread() -> None:
    transfers = ThreadedTransfers()
    seen: list[tuple[int, int]] = []

    def copy(number: int) -> None:
        seen.append((number, threading.get_ident()))

    for number in range(5):
        transfers.start(number, partial(copy, number))
    ended = transfers.wait()

    assert ended == [Finished(number) for number in range(5)]
    assert [number for number, _ in seen] == list(range(5))
    assert threading.get_ident() not in {thread for _, thread in seen}


def test_a_copy_takes_the_least_time_at_least() -> None:
    transfers, started_s = ThreadedTransfers(least_s=0.05), time.monotonic()
    copied = threading.Event()

    transfers.start(1, copied.set)
    assert copied.wait(timeout=60.0)

    assert transfers.wait() == [Finished(1)]
    assert time.monotonic() - started_s >= 0.05


def test_a_copy_under_way_is_not_waited_for() -> None:
    transfers, gate = ThreadedTransfers(), threading.Event()
    transfers.start(1, gate.wait)

    assert transfers.finished() == []

    gate.set()
    assert transfers.wait() == [Finished(1)]
    assert transfers.finished() == []


def test_a_copy_that_raises_is_told_and_the_next_one_runs() -> None:
    transfers = ThreadedTransfers()
    seen: list[int] = []

    transfers.start(1, lambda: 1 // 0)
    transfers.start(2, lambda: seen.append(2))
    failed, done = transfers.wait()

    assert failed.number == 1
    assert failed.error.startswith("ZeroDivisionError")
    assert done == Finished(2)
    assert seen == [2]


def test_the_thread_ends_with_its_copies_and_later_ones_get_another() -> None:
    transfers, gate = ThreadedTransfers(linger_s=0.0), threading.Event()
    for number in (1, 2):
        before = set(threading.enumerate())
        gate.clear()
        transfers.start(number, gate.wait)
        (thread,) = set(threading.enumerate()) - before
        gate.set()
        assert transfers.wait() == [Finished(number)]
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.mark.parametrize("count", [0, 1])
def test_waiting_twice_waits_for_nothing(count: int) -> None:
    transfers = ThreadedTransfers()
    for number in range(count):
        transfers.start(number, lambda: None)

    assert len(transfers.wait()) == count
    assert transfers.wait() == []


@pytest.mark.parametrize("device_name", DEVICES)
def test_states_and_kv_that_went_to_the_host_and_back_give_the_same_tokens(
    device_name: str,
) -> None:
    device = device_of(device_name)
    model = build_model(NANO_MODEL, torch.float64, device, seed=1)
    roomy = replace(NANO_ENGINE, device=device_name, kv_tokens=2048, mamba_slots=64)
    tight = replace(NANO_ENGINE, device=device_name, kv_tokens=160, hicache=HiCache(ratio=8.0))
    prompts = [[(7 * place + first) % 47 + 1 for place in range(60)] for first in range(8)]
    greedy = SamplingParams(max_new_tokens=4)

    outputs = []
    for config in (roomy, tight):
        engine = Engine(config, model=model)
        outputs.append([engine.generate([prompt], greedy) for prompt in prompts * 2])

    assert outputs[0] == outputs[1]
    assert engine.counters.host_load_backs > 0


@pytest.mark.gpu
def test_a_side_stream_waits_for_what_was_queued_before_the_copy() -> None:
    device = device_of("cuda")
    transfers = SideStreamTransfers(device)
    rows = torch.zeros(1 << 20, device=device)
    square = torch.rand(4096, 4096, device=device)
    on_host: list[torch.Tensor] = []
    streams: list[torch.cuda.Stream] = []

    def copy() -> None:
        streams.append(torch.cuda.current_stream(device))
        on_host.extend(to_host([rows[:]]))

    for _ in range(50):
        square = square @ square
        square /= square.max()
    rows.fill_(7.0)
    transfers.start(1, copy)
    assert transfers.wait() == [Finished(1)]

    assert streams != [torch.cuda.current_stream(device)]
    assert on_host[0].is_pinned()
    assert bool((on_host[0] == 7.0).all())
    assert torch.equal(to_device(on_host[0], device), rows)
