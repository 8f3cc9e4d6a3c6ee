"""Settings that are omitted for an older engine that does not have them."""

from __future__ import annotations

import msgspec

from hybridbench.compare.launching import DEFAULTS
from hybridbench.foundation.engine_config import EngineConfig


def test_a_setting_that_is_left_out_has_the_engines_own_default() -> None:
    engine = vars(EngineConfig())

    assert {name: msgspec.to_builtins(engine[name]) for name in DEFAULTS} == DEFAULTS
