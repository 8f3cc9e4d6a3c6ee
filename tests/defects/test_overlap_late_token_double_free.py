"""sglang#12224 in a whole engine: the slot of each surplus step is freed twice."""

from __future__ import annotations

from hybridbench.defects.inject import injected
from hybridbench.defects.pr12224_overlap_late_token_double_free import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle


def lenient_engine() -> Engine:
    return make_engine(
        enable_overlap_schedule=True, check_level="idle", check_fatal=False, check_owners=False
    )


def serve(engine: Engine, count: int) -> None:
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    for index in range(count):
        engine.submit(f"r{index}", [index, index + 1, index + 2], params)
    run_to_idle(engine)


def test_a_healthy_engine_has_no_slot_twice_in_its_free_list() -> None:
    engine = lenient_engine()

    serve(engine, 6)

    assert engine.counters.surplus_steps == 6
    free = engine.pools.token_to_kv_pool_allocator.free_pages.tolist()
    assert len(set(free)) == len(free)
    assert_idle_and_clean(engine)


def test_with_the_defect_each_surplus_step_makes_one_slot_too_many_available() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = lenient_engine()
        serve(engine, 6)
        residual = engine.pool_stats()["kv"].residual
        free = engine.pools.token_to_kv_pool_allocator.free_pages.tolist()
        in_tree = engine.pools.tree_cache.tree_slots().kv_indices.tolist()

    assert engine.counters.finishes == engine.counters.surplus_steps == 6
    assert residual == -DEFECT.truth.counts()["slots_freed_twice"] == -6
    # The slot of each text's last token is in the tree and in the free list at the same time.
    assert len(set(free) & set(in_tree)) == 6
    [violation] = [v for v in engine.violations if v.kind is ViolationKind.RESIDUAL]
    assert (violation.pool, violation.count) == ("kv", -6)


def test_no_entry_of_the_free_list_is_lost_when_it_holds_more_than_the_pool() -> None:
    with injected(DEFECT):
        engine = lenient_engine()
        serve(engine, 6)
        assert engine.flush_cache()
        free = engine.pools.token_to_kv_pool_allocator.free_pages.tolist()

        assert len(free) == engine.config.kv_tokens + 6
        assert set(free) == set(range(1, engine.config.kv_tokens + 1))
        serve(engine, 6)
        assert engine.pool_stats()["kv"].residual == -12


def test_an_aborted_request_has_no_surplus_step() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = lenient_engine()
        engine.submit("r0", [1, 2, 3], SamplingParams(max_new_tokens=8))
        engine.step()
        engine.abort("r0")
        run_to_idle(engine)

    assert engine.counters.abort_decode == 1
    assert DEFECT.truth.counts() == {}
    assert engine.pool_stats()["kv"].residual == 0


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        serve(lenient_engine(), 4)

    engine = lenient_engine()
    serve(engine, 4)

    assert_idle_and_clean(engine)
