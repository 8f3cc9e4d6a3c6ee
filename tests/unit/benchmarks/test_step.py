"""The step benchmark runs whole batches in pools of the requested sizes and ages."""

from __future__ import annotations

from benchmarks.step import bench_step


def test_a_row_for_each_pool_size_and_age() -> None:
    rows = bench_step(kv_tokens=(16_384, 32_768), served=(0, 64), steps=12)

    assert [(row.kv_tokens, row.served) for row in rows] == [
        (16_384, 0), (16_384, 64), (32_768, 0), (32_768, 64),
    ]  # fmt: skip
    assert all(row.us_per_token > 0 and row.check_us_per_step > 0 for row in rows)
