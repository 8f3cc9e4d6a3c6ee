"""Helpers for tests of all released engines: install a fake of the package, submit, run."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hybridbench.engine.events import EventKind
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.released.engine import ReleasedEngine


@contextmanager
def installed(package: str, modules: Mapping[str, types.ModuleType]) -> Iterator[None]:
    """Replace all modules of ``package`` by ``modules``, given by their full names."""
    before = {name: one for name, one in sys.modules.items() if name.split(".")[0] == package}
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def submit(
    engine: ReleasedEngine, rid: str, prompt: list[int], output: int = 4, **others: str
) -> None:
    params = SamplingParams(max_new_tokens=output, ignore_eos=True)
    engine.submit(rid, prompt, params, **others)  # type: ignore[arg-type]


def drain(engine: ReleasedEngine) -> list[tuple[str, EventKind]]:
    told = []
    while engine.has_work:
        told += [(event.rid, event.kind) for event in engine.step()]
    return told
