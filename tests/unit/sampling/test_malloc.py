from __future__ import annotations

import numpy as np
import pytest

from hybridbench.sampling.malloc import malloc_reader


def test_bytes_in_use_follow_what_is_held() -> None:
    read = malloc_reader()
    if read is None:
        pytest.skip("not glibc")
    before = read()
    held = np.ones(4 * 2**20, dtype=np.uint8)
    during = read()
    del held
    after = read()

    assert during.in_use_bytes - before.in_use_bytes >= 4 * 2**20
    assert after.in_use_bytes - before.in_use_bytes < 2**20
    assert during.arena_bytes >= during.in_use_bytes
