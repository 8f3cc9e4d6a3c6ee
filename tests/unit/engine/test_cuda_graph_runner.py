"""Recorded decode steps: their results, batch sizes, padding, inputs and release."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hybridbench.engine.cuda_graph_runner import (
    CudaGraphRecorder,
    CudaGraphRunner,
    GraphRecorder,
    capture_bs,
)
from hybridbench.engine.engine import Engine
from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.registry import Model, build_model
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.errors import ConfigError
from tests.builders import NANO_ENGINE, attention_model, make_engine, nano_model
from tests.graph_recorder import EagerRecorder
from tests.model_steps import NANO_MODEL, Stepper
from tests.unit.engine.kernels.agreement import device_of
from tests.unit.engine.models.test_families import FAMILIES

MODELS: dict[str, ModelConfig] = {"qwen3-next": NANO_MODEL, **FAMILIES}
TEXTS = [[1, 2, 3], [4], list(range(5, 25)), [7, 7], list(range(30, 40))]


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return build_model(MODELS[request.param], torch.float64, "cpu", seed=4)


def graphs_of(
    stepper: Stepper, recorder: GraphRecorder, max_bs: int, context: int = 64
) -> CudaGraphRunner:
    return CudaGraphRunner(stepper.model, stepper.kv_pool, recorder, max_bs, context)


def decoded(stepper: Stepper, graphs: CudaGraphRunner | None = None) -> list[Tensor]:
    """Return logits of steps with five, three, two and five requests; the first is a fork."""
    requests = [stepper.start() for _ in TEXTS]
    stepper.extend(requests, TEXTS)
    requests[0] = stepper.fork(requests[2])
    logits = []
    for token, members in ((3, requests), (1, requests[1:4]), (4, requests[:2]), (5, requests)):
        if graphs is None:
            logits.append(stepper.decode(members, [token] * len(members)))
        else:
            batch = stepper.batch("decode", members, [[token]] * len(members))
            assert graphs.can_run(batch)
            logits.append(graphs.replay(batch).clone())
    return logits


def test_replayed_steps_compute_what_the_model_computes(model: Model) -> None:
    # Slot 0, which padding reads, is NaN here.
    plain, stepper = Stepper(model, seed=1), Stepper(model, seed=1)
    recorder = EagerRecorder()

    replayed = decoded(stepper, graphs_of(stepper, recorder, max_bs=6))

    for ours, expected in zip(replayed, decoded(plain), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    assert (recorder.recorded, recorder.replayed) == (4, 4)


def test_recording_writes_to_slot_0_alone() -> None:
    stepper = Stepper(build_model(NANO_MODEL, torch.float64, "cpu", seed=5), poison=False)

    graphs_of(stepper, EagerRecorder(), max_bs=4)

    for tensor in stepper.all_tensors():
        by_slot = tensor if tensor.dim() == 3 else tensor.transpose(0, 1)
        assert bool((by_slot[0] != 0).any())
        assert bool((by_slot[1:] == 0).all())


def test_larger_batches_and_other_steps_are_not_replayed() -> None:
    stepper = Stepper(build_model(NANO_MODEL, torch.float64, "cpu", seed=5))
    graphs = graphs_of(stepper, EagerRecorder(), max_bs=2)
    requests = [stepper.start() for _ in range(3)]

    assert not graphs.can_run(stepper.batch("extend", requests[:1], [[1, 2]]))
    assert graphs.can_run(stepper.batch("decode", requests[:2], [[1], [2]]))
    assert not graphs.can_run(stepper.batch("decode", requests, [[1], [2], [3]]))


@pytest.mark.parametrize(
    ("max_bs", "sizes"),
    [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8)), (20, (1, 2, 4, 8, 16, 20))],
)
def test_few_sizes_are_recorded(max_bs: int, sizes: tuple[int, ...]) -> None:
    assert capture_bs(max_bs) == sizes


def test_inputs_name_the_slots_of_each_request_and_padding_those_of_nobody() -> None:
    stepper = Stepper(build_model(FAMILIES["gpt-oss"], torch.float64, "cpu", seed=5))
    long, short = stepper.start(), stepper.start()
    stepper.extend([long, short], [list(range(8)), [1, 2]])
    batch = stepper.batch("decode", [long, short], [[9], [3]])

    inputs = stepper.model.decode_inputs(batch, stepper.kv_pool)
    padded = inputs.padded(3)

    assert inputs.input_ids.tolist() == [9, 3]
    assert inputs.positions.tolist() == [8, 2]
    for kind, window in ((0, 100), (1, 5)):
        for each, (start, count) in enumerate(zip(*padded.seen(kind), strict=True)):
            slots = padded.kv_indices[start : start + count].tolist()
            expected = [*(r.kv_slots for r in (long, short)), [0]][each]
            assert slots == expected[-window:]
        assert padded.out_cache_loc(kind).tolist() == [long.kv_slots[-1], short.kv_slots[-1], 0]
    assert padded.slots.tolist() == [long.slot, short.slot, 0]


def test_an_engine_records_no_more_than_it_runs() -> None:
    recorder = EagerRecorder()

    engine = make_engine(
        model=nano_model(), recorder=recorder, cuda_graph_max_bs=64, max_running_requests=3
    )
    engine.generate([[1, 2, 3], [4, 5]], SamplingParams(max_new_tokens=5))

    assert recorder.recorded == len(capture_bs(3))
    assert engine.counters.graph_replays == recorder.replayed == engine.counters.decode_steps


class Followed(EagerRecorder):
    """Counts its recordings that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self._recordings: list[weakref.ref[Callable[[], None]]] = []

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        replay = super().record(work)
        self._recordings.append(weakref.ref(replay))
        return replay

    @property
    def alive(self) -> int:
        return sum(recording() is not None for recording in self._recordings)


def test_recordings_are_released_with_their_engine() -> None:
    recorder = Followed()
    engine = make_engine(
        model=nano_model(), recorder=recorder, cuda_graph_max_bs=3, max_running_requests=3
    )
    engine.generate([[1, 2, 3], [4, 5]], SamplingParams(max_new_tokens=5))
    assert recorder.alive == len(capture_bs(3))

    del engine
    gc.collect()

    assert recorder.alive == 0


def test_a_processor_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cuda_graph_max_bs is 8, but device is 'cpu'"):
        Engine(replace(NANO_ENGINE, cuda_graph_max_bs=8), model=attention_model())


@pytest.mark.gpu
@pytest.mark.parametrize("family", MODELS)
def test_graphs_on_a_device_give_what_its_steps_give(family: str) -> None:
    device = device_of("cuda")
    model = build_model(MODELS[family], torch.float64, device, seed=4)
    plain, stepper = Stepper(model, seed=1), Stepper(model, seed=1)
    before = torch.cuda.memory_allocated()

    graphs = graphs_of(stepper, CudaGraphRecorder(device), max_bs=6)
    replayed = decoded(stepper, graphs)

    for ours, expected in zip(replayed, decoded(plain), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    assert graphs.pool_bytes > 0
    del graphs
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before + 2**20
