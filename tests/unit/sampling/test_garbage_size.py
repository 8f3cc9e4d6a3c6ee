"""Garbage sizes that a scan of a whole process would not test well: shares, samples, order."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

from hybridbench.sampling import garbage_size as sizes
from hybridbench.sampling.garbage_size import garbage_size, type_name
from hybridbench.sampling.tensor_storage import TensorStorages
from tests.unit.sampling.garbage import Node

NO_TENSORS = TensorStorages([], [])


def test_a_payload_that_two_hold_is_counted_once_between_them() -> None:
    shared = tuple(range(10**6, 10**6 + 1000))
    holders: list[object] = [Node([shared]), Node([shared])]
    lists = [vars(node)["payload"] for node in holders]
    truth = sys.getsizeof(shared) + 1000 * 28
    del shared
    # The collector stops tracking a tuple of ints when it first meets it.
    gc.collect()

    size = garbage_size(lists, NO_TENSORS)

    assert size.total_bytes == pytest.approx(truth, rel=0.01)


def test_values_that_the_whole_process_shares_weigh_nothing() -> None:
    garbage: list[object] = [[None, True, 1, "", b""] * 100]

    assert garbage_size(garbage, NO_TENSORS).total_bytes < sys.getsizeof(garbage[0]) + 400


def test_many_objects_are_sized_by_a_random_part_and_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizes, "_OBJECTS_SIZED_MAX", 500)
    # Strictly alternating: a sample of every second object would see one type only.
    garbage: list[object] = []
    for number in range(2000):
        garbage += [[np.zeros(100)], {number: b"x" * 50}]
    exact_types = {type_name(list): 2000, type_name(dict): 2000}

    size = garbage_size(garbage, NO_TENSORS)

    assert not size.exact
    assert {row.type_name: row.count for row in size.types} == exact_types
    by_type = {row.type_name: row.size_bytes for row in size.types}
    one_list = sys.getsizeof([0]) + sys.getsizeof(np.zeros(100))
    assert by_type["list"] == pytest.approx(2000 * one_list, rel=0.05)
    assert size.types[0].type_name == "list", "the largest comes first"


def test_types_are_named_with_their_module_unless_builtin() -> None:
    assert type_name(int) == "int"
    assert type_name(Node) == "tests.unit.sampling.garbage.Node"
