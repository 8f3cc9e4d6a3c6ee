"""The engine benchmark compares like with like: both sides generate the same tokens."""

from __future__ import annotations

import pytest

from benchmarks import engine


@pytest.mark.slow
def test_both_sides_write_the_same_tokens_and_the_ratio_is_that_of_their_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(engine, "REQUESTS", 8)

    result = engine.run(rounds=1)

    assert result.same_tokens > 0.99
    assert result.ratio == pytest.approx(result.transformers_s[0] / result.engine_s[0])
    assert result.requests_per_s == pytest.approx(engine.REQUESTS / result.engine_s[0])
