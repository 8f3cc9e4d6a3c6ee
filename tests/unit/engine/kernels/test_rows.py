"""Storing overwrites whole rows of a pool and nothing else."""

from __future__ import annotations

import pytest
import torch

from hybridbench.engine.kernels.rows import store_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [[3, 0, 4], [2], []], ids=str)
def test_rows_of_one_layer_are_stored_where_index_copy_stores_them(
    rows: list[int], dtype: torch.dtype
) -> None:
    pool = torch.randn(5, 2, 3, 7).to(dtype)
    expected = pool.clone()
    values, places = torch.randn(len(rows), 3, 7).to(dtype), torch.tensor(rows, dtype=torch.int64)

    store_rows(pool[:, 1], places, values)

    expected[:, 1].index_copy_(0, places, values)
    assert torch.equal(pool, expected)


def test_rows_that_are_no_blocks_are_an_error() -> None:
    pool = torch.zeros(5, 3, 7).transpose(1, 2)

    with pytest.raises(RuntimeError, match="view"):
        store_rows(pool, torch.tensor([1]), torch.zeros(1, 7, 3))
