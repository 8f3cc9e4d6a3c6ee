from __future__ import annotations

from pathlib import Path

from hybridbench.workload.catalog import profiles_dir
from hybridbench.workload.synthetic_trace import write_synthetic_trace
from hybridbench.workload.trace import TraceFile


def test_the_shipped_trace_is_what_its_generator_writes(tmp_path: Path) -> None:
    shipped = profiles_dir() / "traces" / "synthetic-mooncake.jsonl"
    path = tmp_path / "trace.jsonl"

    write_synthetic_trace(path)

    assert path.read_bytes() == shipped.read_bytes()


def test_equal_ids_have_equal_beginnings_as_in_a_recorded_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_synthetic_trace(path, rows=200, seed=4)
    before: dict[int, tuple[int, ...]] = {}

    for row in TraceFile(path).rows():
        for position, hash_id in enumerate(row.hash_ids):
            assert before.setdefault(hash_id, row.hash_ids[:position]) == row.hash_ids[:position]
