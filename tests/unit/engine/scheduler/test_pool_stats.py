from __future__ import annotations

from hybridbench.engine.scheduler.pool_stats import PoolStats


def test_the_residual_is_what_no_term_explains() -> None:
    stats = PoolStats(
        total=100,
        available=50,
        evictable=20,
        protected=10,
        in_flight=9,
        session_held=5,
        waiting_held=4,
    )

    assert stats.residual == 2
    assert stats.as_dict()["residual"] == 2
    assert stats.as_dict()["waiting_held"] == 4
    assert (stats.used, stats.usage, stats.uncached) == (30, 0.3, 9)
