"""Build an engine loop from a Start message."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from hybridbench import __version__
from hybridbench.defects.catalog import find_defect
from hybridbench.defects.forced import ForcedPaths
from hybridbench.defects.inject import apply_defects
from hybridbench.engine.assembly import dtype_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.models.registry import ResolvedModel, resolve_model
from hybridbench.engine.models.sizes import described
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import ConfigError
from hybridbench.records.messages import Ready, Scalar, Start
from hybridbench.sampling.forked_child import exclude_from_forks
from hybridbench.sampling.gc_monitor import (
    GcMonitor,
    gc_settings,
    set_gc_after_warmup,
)
from hybridbench.sampling.heap_scan import ForkScan
from hybridbench.sampling.heap_survey import SurveyScope
from hybridbench.sampling.malloc import malloc_reader
from hybridbench.targets.engine_files import imported_engine_files
from hybridbench.targets.target import Capability
from hybridbench.targets.wire import WorkerWire
from hybridbench.worker.answers import AnswerSample
from hybridbench.worker.diagnosis import WorkerDiagnosis
from hybridbench.worker.engine_loop import EngineLoop
from hybridbench.worker.first_touch import touch_largest_shapes
from hybridbench.worker.free_memory import fit_pools
from hybridbench.worker.injected_counts import InjectedCounts
from hybridbench.worker.metrics import DECLARED_FAMILIES, WorkerMetrics, usable_device_bytes
from hybridbench.worker.pool_memory import pool_ranges
from hybridbench.worker.port import ServedEngine
from hybridbench.worker.probes import WorkerProbes
from hybridbench.worker.reference import serve_reference

_NO_MEMORY = ("can't allocate memory", "out of memory")
_VERSIONED = ("torch", "numpy", "msgspec")


def build_loop(
    start: Start, wire: WorkerWire, malloc: dict[str, Scalar], started_s: float
) -> EngineLoop:
    """Build the loop and its parts, then send Ready.

    Raises:
        ConfigError, UsageError: errors that the user can correct.
    """
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    if start.gc_thresholds:
        gc.set_threshold(*start.gc_thresholds)
    # Apply defects before the engine exists: objects that bound a method earlier would keep the
    # healthy one.
    defects = [find_defect(name) for name in start.defects]
    apply_defects(defects)
    # A released engine forces paths by its own mechanism, or not at all.
    forced = ForcedPaths({} if start.released else start.force, engine_config(start).seed)
    # Apply these after the defects, to wrap the methods that the defects put in place.
    forced.apply()
    served = _released(start) if start.released else _bundled(engine_config(start))
    engine, config = served.engine, served.engine.config
    touched = touch_largest_shapes(engine)
    # A serving engine holds about a million long-lived objects.  A full collection starts when the
    # survivors since the last one exceed a quarter of the old objects, so the number of live
    # objects determines how often garbage is found.  Each inner list is tracked by the collector
    # and takes about 90 bytes.
    ballast = [[index] for index in range(start.ballast_objects)]
    set_gc_after_warmup(start.gc_mode)
    heap_scan = _heap_scan(start, served, wire)
    answers = AnswerSample(start.answers_kept, config)
    metrics = WorkerMetrics(engine, GcMonitor(), malloc_reader(), touched, forced.counts)
    roots: list[object] = []
    scope = _survey_scope(heap_scan, roots, ballast)
    injected = InjectedCounts(engine, defects)
    diagnosis = WorkerDiagnosis(engine, metrics, scope)
    probes = WorkerProbes(engine, heap_scan, metrics, injected, diagnosis)
    loop = EngineLoop(engine, wire, probes, metrics, ballast, injected, answers)
    roots.append(loop)
    boot_s = time.monotonic() - started_s
    wire.send(_ready(start, served, heap_scan.method, malloc, boot_s))
    return loop


def run_reference(start: Start, wire: WorkerWire) -> None:
    """Serve as the reference for a worker that was started with the same ``start``.

    Raises: as ``serve_reference`` does.
    """
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    apply_defects([find_defect(name) for name in start.defects])
    serve_reference(engine_config(start), wire)


def engine_config(start: Start) -> EngineConfig:
    """Return the engine's own configuration from the fields on the wire.

    Raises:
        ConfigError: an unknown field or an invalid value.
    """
    known = set(EngineConfig.__dataclass_fields__)
    unknown = sorted(set(start.engine) - known)
    if unknown:
        raise ConfigError(f"engine: this engine has no setting {', '.join(unknown)}.")
    try:
        return msgspec.convert(start.engine, EngineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"engine: {error}.") from error


def build_engine(config: EngineConfig) -> Engine:
    """Build the engine of ``config``.

    Raises:
        ConfigError: it cannot be built, or needs more memory than available.
    """
    try:
        return Engine(config)
    except (MemoryError, RuntimeError) as error:
        # torch raises RuntimeError, on a CPU not even a subclass of it.
        short = isinstance(error, MemoryError) or any(said in str(error) for said in _NO_MEMORY)
        if not short:
            raise
        raise ConfigError(
            "engine: there is not enough memory to build it; make pools.kv_tokens, "
            "pools.mamba_slots, pools.max_context_len or engine.max_running_requests smaller."
        ) from error


@dataclass(frozen=True)
class _Served:
    """An engine to be served, and what a run records about it.

    Attributes:
        model, note: which model runs, and one sentence about it.
        sources: SHA-256 of the engine's files, and their number.
        versions: versions of everything that determines its behaviour, by name.
        pools: the object that holds its large buffers, which forked children exclude.
        lacks: capabilities that it does not have.
        uncounted: events that may happen in it, but are not counted.
    """

    engine: ServedEngine
    model: str
    note: str
    sources: tuple[str, int]
    versions: Mapping[str, str]
    pools: object = None
    lacks: frozenset[Capability] = frozenset()
    uncounted: frozenset[str] = frozenset()


def _bundled(config: EngineConfig) -> _Served:
    config, pools_note = fit_pools(config)
    engine = build_engine(config)
    resolved = resolve_model(config.model, config.device)
    notes = (model_note(config, resolved), engine.graphs_note, pools_note)
    note = "; ".join(filter(None, notes))
    return _Served(engine, resolved.name, note, imported_engine_files(), {}, engine.pools)


def _released(start: Start) -> _Served:
    """Build the released engine that ``start`` names.

    Raises:
        ConfigError: its classes cannot be driven, or not as the profile requires.
    """
    # Imported here because the bundled engine does not need it.
    from hybridbench.released.build import build_released

    engine = build_released(start.released, engine_config(start), start.force)
    lacks = {Capability.ANSWERS}
    if not engine.has_sessions:
        lacks.add(Capability.SESSIONS)
    lacked = frozenset(lacks)
    return _Served(
        engine,
        engine.model,
        engine.note,
        engine.sources(),
        engine.versions,
        lacks=lacked,
        uncounted=engine.uncounted,
    )


def _heap_scan(start: Start, served: _Served, wire: WorkerWire) -> ForkScan:
    """Return a heap scan; under CUDA it works too, as its child does not touch device tensors."""
    excluded = exclude_from_forks(pool_ranges(served.pools))
    return ForkScan(
        served.engine.reference_counted_classes,
        excluded,
        close_in_child=(wire.fileno(),),
        timeout_s=start.heap_scan_timeout_s,
    )


def _survey_scope(
    heap_scan: ForkScan, roots: Sequence[object], ballast: Sequence[object]
) -> SurveyScope:
    """Return what a survey walks: everything below ``roots``, which may be filled later."""
    return SurveyScope(
        roots=lambda: roots,
        ballast=ballast,
        excluded=heap_scan.excluded,
        close_in_child=heap_scan.close_in_child,
    )


def _ready(
    start: Start, served: _Served, heap_scan: str, malloc: dict[str, Scalar], boot_s: float
) -> Ready:
    engine = served.engine
    digest, files = served.sources
    versions = {name: importlib.metadata.version(name) for name in _VERSIONED}
    return Ready(
        pid=os.getpid(),
        capabilities=[str(one) for one in Capability if one not in served.lacks],
        metrics=list(DECLARED_FAMILIES),
        heap_scan=heap_scan,
        engine_files_sha256=digest,
        engine_files=files,
        model=served.model,
        model_note=served.note,
        pools={name: stats.total for name, stats in engine.pool_stats().items()},
        versions={
            "hybridbench": __version__,
            "python": platform.python_version(),
            "implementation": sys.implementation.name,
            **versions,
            **served.versions,
        },
        gc=dict(gc_settings(start.gc_mode)),
        malloc=malloc,
        max_prompt_tokens=engine.config.max_request_len - 1,
        vocab_size=engine.vocab_size,
        boot_s=boot_s,
        device_bytes=usable_device_bytes(engine.config.device),
        uncounted=sorted(served.uncounted),
    )


def model_note(config: EngineConfig, resolved: ResolvedModel) -> str:
    """Return a note that names the weights and, for a checkpoint, describes its model."""
    if resolved.path is not None:
        return f"weights from {resolved.name}: {described(resolved.config, dtype_of(config.dtype))}"
    seeded = f"preset {config.model} with random weights of seed {config.seed}, {config.dtype}"
    note = resolved.note or seeded
    if not Path(config.model, "config.json").is_file():
        return note
    return f"{note.removesuffix('.')}; for the directory of that name write ./{config.model}"
