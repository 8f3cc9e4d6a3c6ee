"""Which names may leave the process."""

from __future__ import annotations

from hybridbench.probe.hybridbench_probe.names import HIDDEN, Names


def test_the_program_of_a_spawned_worker_has_a_name() -> None:
    """``multiprocessing`` imports it under a special name, without a ``__spec__``."""
    names = Names()

    assert names.module("__mp_main__") == "__mp_main__"
    assert names.module("not.imported") == HIDDEN
