from __future__ import annotations

import torch

from hybridbench.sampling.forked_child import MemoryRange
from hybridbench.sampling.tensor_storage import TensorStorages

KINDS = [torch.Tensor, torch.nn.Parameter, int]


def test_a_storage_is_freed_only_with_its_last_tensor() -> None:
    base = torch.zeros(1000)
    views = [base[:10], base[10:20]]
    heap: list[object] = [base, *views, 7]
    storages = TensorStorages(heap, KINDS)

    assert storages.bytes_only_held_by(views) == {}
    assert storages.bytes_only_held_by([base, *views]) == {torch.Tensor: 4000}


def test_storages_of_excluded_memory_are_not_counted() -> None:
    pool = torch.zeros(1000)
    storage = pool.untyped_storage()
    excluded = [MemoryRange(storage.data_ptr(), storage.nbytes())]

    assert TensorStorages([pool], KINDS, excluded).bytes_only_held_by([pool]) == {}


def test_without_tensors_there_is_nothing_to_do() -> None:
    assert TensorStorages([1, 2], [int]).bytes_only_held_by([1]) == {}
