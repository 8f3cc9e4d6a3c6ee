from __future__ import annotations

import numpy as np
from torch import Tensor

from hybridbench.engine.engine import Engine
from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import make_attention_engine, make_engine, make_req


def _batches(engine: Engine) -> list[ForwardBatch]:
    """Return a list that collects the batches given to the model from now on."""
    seen: list[ForwardBatch] = []
    model = engine._runner
    healthy = model.launch

    def noting(batch: ForwardBatch) -> Tensor:
        seen.append(batch)
        return healthy(batch)

    model.launch = noting  # type: ignore[method-assign]
    return seen


def test_a_prefill_batch_covers_what_no_cache_had() -> None:
    engine = make_engine()
    engine.generate([[1, 2, 3, 4]], SamplingParams(max_new_tokens=1))
    seen = _batches(engine)
    engine.submit("hit", [1, 2, 3, 4, 5, 6], SamplingParams(max_new_tokens=2))
    engine.submit("miss", [9, 8, 7], SamplingParams(max_new_tokens=2))

    engine.step()

    [batch] = seen
    assert batch.mode == "extend"
    assert batch.input_ids.tolist() == [5, 6, 9, 8, 7]
    assert batch.positions.tolist() == [4, 5, 0, 1, 2]
    assert (list(batch.prefix_lens), list(batch.extend_lens)) == ([4, 0], [2, 3])
    assert list(batch.seq_lens) == [6, 3]
    assert len(batch.kv_indices) == 9
    assert batch.kv_indices[4:].tolist() == batch.out_cache_loc.tolist()
    assert len(set(batch.mamba_indices.tolist())) == 2
    assert 0 not in batch.mamba_indices


def test_a_decode_batch_has_one_token_and_one_new_position_each() -> None:
    engine = make_engine()
    for i in range(3):
        engine.submit(f"r{i}", [i + 1] * (i + 2), SamplingParams(max_new_tokens=5))
    engine.step()
    seen = _batches(engine)

    engine.step()

    [batch] = seen
    rows = [req.kv.row for req in engine.scheduler.running]
    table = engine.pools.req_to_token_pool.req_to_token
    assert batch.mode == "decode"
    assert batch.positions.tolist() == [2, 3, 4]
    assert list(batch.seq_lens) == [3, 4, 5]
    assert batch.input_ids.tolist() == [req.output_ids[0] for req in engine.scheduler.running]
    assert batch.out_cache_loc.tolist() == [int(table[row, 2 + i]) for i, row in enumerate(rows)]
    ends = np.cumsum(batch.seq_lens) - 1
    assert batch.kv_indices[ends].tolist() == batch.out_cache_loc.tolist()


def test_a_prefill_takes_the_last_free_pages_and_evicts_none_too_many() -> None:
    """Two one-page prompts fit into two pages; no margin is kept for partly filled pages."""
    engine = make_attention_engine(16, check_level="off")
    engine.generate([[5] * 32], SamplingParams(max_new_tokens=1))
    allocator = engine.pools.token_to_kv_pool_allocator
    allocator.alloc(allocator.available_size() - 32)
    reqs = [make_req(f"r{i}", [i + 1] * 16) for i in range(2)]
    for req in reqs:
        req.extend_input_len = 16

    batch = engine.scheduler._builder.extend(reqs)

    assert batch is not None
    assert allocator.available_size() == 0
    assert engine.pools.tree_cache.events.evict_leaf == 0
    assert batch.mamba_indices.tolist() == [0, 0]


def test_a_decode_step_continues_the_page_and_takes_a_new_one_at_its_border() -> None:
    engine = make_attention_engine(16)
    engine.submit("inside", [1] * 9, SamplingParams(max_new_tokens=5))
    engine.submit("border", [2] * 16, SamplingParams(max_new_tokens=5))
    engine.step()
    before = engine.pools.token_to_kv_pool_allocator.available_size()
    seen = _batches(engine)

    engine.step()

    [batch] = seen
    inside, border = batch.out_cache_loc.tolist()
    assert inside == batch.kv_indices[8] + 1
    assert border % 16 == 0
    assert engine.pools.token_to_kv_pool_allocator.available_size() == before - 16
