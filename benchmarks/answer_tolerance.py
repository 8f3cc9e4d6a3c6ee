"""Measure how far rounding moves healthy engines' logits, to set the tolerance for wrong answers.

    python -m benchmarks answer-tolerance [--device cpu] [--dtype float32] [--requests 250]
        [--processes 14] [PRESET ...]

For each preset and each way to schedule it, an engine serves random traffic with shared prefixes,
and the reference recomputes every finished answer.  Both have logits for each token, so the
distance due to rounding is at most 2 max|difference| / standard deviation; this bound is recorded.
Every second request is sampled at temperature 1.
Recordings with even seeds set the tolerance; those with odd seeds check it.
"""

from __future__ import annotations

import json
import multiprocessing
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EventKind
from hybridbench.engine.next_token import NextTokens
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.schedule_batch import ScheduleBatch
from hybridbench.foundation.engine_config import EngineConfig, HiCache
from hybridbench.records.answers import ROUTING_GAP_LEAST
from hybridbench.worker.reference import Reference, RoutingWatch, WatchedModel

PRESETS = (
    "qwen3-next-nano",
    "qwen3-next-tiny",
    "qwen3-next-mini",
    "attention-tiny",
    "qwen3.5-tiny",
    "gpt-oss-tiny",
    "nemotron-h-tiny",
    "falcon-h1-tiny",
)
# Above this distance, check whether a near-tie between experts explains the difference.
_FAR = 1e-4
_TRACKED = {"mamba_scheduler_strategy": "extra_buffer", "page_size": 16, "mamba_track_interval": 32}
WAYS: dict[str, dict[str, object]] = {
    "radix": {},
    "overlap": {"enable_overlap_schedule": True},
    "tracked": {**_TRACKED, "enable_overlap_schedule": True},
    "drafts": {"speculative_algorithm": "NGRAM"},
    "host": {"hicache": HiCache(ratio=2.0)},
    "unified": {**_TRACKED, "cache": "unified"},
}


@dataclass
class Figures:
    """Figures of one recording; distances are upper bounds for rounding at a token."""

    preset: str
    family: str
    way: str
    seed: int
    answers: int = 0
    tokens: int = 0
    differ: int = 0
    largest: float = 0.0  # without near-ties between experts
    largest_of_all: float = 0.0
    near_ties: int = 0  # answers beyond _FAR explained by such a near-tie
    gaps: list[float] = field(default_factory=list)  # routing gaps of answers beyond _FAR
    distances: list[float] = field(default_factory=list)  # where tokens differed


class Judged:
    """An engine that keeps the logits of each output token."""

    def __init__(self, config: EngineConfig, model: WatchedModel) -> None:
        self.engine = Engine(config, model=model)
        self._model = model
        self.logits: dict[str, list[Tensor]] = defaultdict(list)
        self._accept = self.engine.scheduler.accept
        self.engine.scheduler.accept = self._kept  # type: ignore[method-assign]

    def _kept(self, batch: ScheduleBatch, chosen: NextTokens) -> Sequence[Sequence[int]]:
        tokens = self._accept(batch, chosen)
        assert self._model.logits is not None
        row = 0
        for req, record, length, new in zip(
            batch.reqs, batch.records, batch.forward.extend_lens, tokens, strict=True
        ):
            width = length if batch.forward.mode == "verify" else 1
            if req is not batch.chunked_req and req.kv is record:
                self.logits[req.rid] += self._model.logits[row : row + len(new)].clone()
            row += width
        return tokens


def record(preset: str, way: str, seed: int, requests: int, device: str, dtype: str) -> Figures:
    """Serve requests, recompute their answers, and compare."""
    torch.set_num_threads(1)
    config = EngineConfig(
        model=preset,
        device=device,
        dtype=dtype,
        kv_tokens=8192,
        mamba_slots=96,
        max_context_len=512,
        max_running_requests=12,
        chunked_prefill_size=64,
        max_prefill_tokens=256,
        **WAYS[way],  # type: ignore[arg-type]
    )
    reference = Reference(config)
    judged = Judged(config, reference.model)
    figures = Figures(preset, reference.model.config.model_type, way, seed)
    for req in _served(judged.engine, requests, random.Random(seed)):
        _compare(req, judged.logits.pop(req.rid), reference, figures)
    return figures


def _served(engine: Engine, requests: int, rng: random.Random) -> Iterator[Req]:
    """Serve ``requests`` random requests; yield each as it finishes."""
    vocab = engine.model_config.vocab_size
    prefixes = [[rng.randrange(vocab) for _ in range(rng.randrange(40, 200))] for _ in range(12)]
    sent = 0
    while sent < requests or engine.has_work:
        while sent < requests and engine.waiting_requests < 4:
            shared = rng.choice(prefixes)
            prompt = shared[: rng.randrange(10, len(shared))]
            prompt += [rng.randrange(vocab) for _ in range(rng.randrange(1, 80))]
            params = SamplingParams(
                max_new_tokens=rng.randrange(8, 64),
                ignore_eos=True,
                temperature=float(sent % 2),
                seed=sent,
            )
            engine.submit(str(sent), prompt, params)
            sent += 1
        for event in engine.step():
            if event.kind is EventKind.FINISHED and event.req is not None:
                yield event.req


def _compare(req: Req, logits: Sequence[Tensor], reference: Reference, figures: Figures) -> None:
    assert len(logits) == len(req.output_ids)
    anew: list[Tensor] = []
    model = reference.model
    forward = model.forward

    def kept(batch: object, kv_pool: object) -> Tensor:
        made: Tensor = forward(batch, kv_pool)  # type: ignore[arg-type]
        anew.append(made[0].double())
        return made

    last = model.logits
    model.forward = kept  # type: ignore[method-assign]
    params = req.sampling_params
    drawn = params.temperature, params.seed
    _, distance, best = reference.compare(req.origin_input_ids, req.output_ids, 0, *drawn)
    model.forward = forward  # type: ignore[method-assign]
    figures.answers += 1
    figures.tokens += len(anew)
    if best >= 0:
        figures.differ += 1
        figures.distances.append(distance)
    pairs = zip(anew, logits, strict=False)
    largest = max(float(2 * (r - j.double()).abs().max() / r.std()) for r, j in pairs)
    figures.largest_of_all = max(figures.largest_of_all, largest)
    if largest > _FAR:
        watch = RoutingWatch()
        with watch:
            reference.compare(req.origin_input_ids, req.output_ids, 0, *drawn)
        gap = watch.least_gap
        if gap is not None:
            figures.gaps.append(gap)
        if gap is not None and gap < ROUTING_GAP_LEAST:
            figures.near_ties += 1
            model.logits = last
            return
    figures.largest = max(figures.largest, largest)
    # With overlap, the engine still needs the logits of its last step.
    model.logits = last


def _job(job: tuple[str, str, int, int, str, str]) -> Figures | str:
    try:
        return record(*job)
    except Exception as error:
        return f"{job}: {type(error).__name__}: {error}"


def main(
    presets: Annotated[
        list[str] | None, typer.Argument(help="Default: one of each family.")
    ] = None,
    way: Annotated[
        list[str] | None, typer.Option(help=f"Any of {', '.join(WAYS)}; repeatable.  Default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where the engine runs: cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Data type of weights and activations.")] = "float32",
    requests: Annotated[int, typer.Option(min=1, help="Requests of each recording.")] = 250,
    seeds: Annotated[int, typer.Option(min=1, help="Recordings of each preset and way.")] = 2,
    processes: Annotated[int, typer.Option(min=1, help="Recordings at a time.")] = 2,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures to this file.")
    ] = None,
) -> None:
    """How far rounding moves the logits of healthy engines; one line for each model family."""
    if unknown := sorted(set(way or ()) - set(WAYS)):
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; choose from {', '.join(WAYS)}")
    jobs = [
        (preset, scheduled, seed, requests, device, dtype)
        for seed in range(seeds)
        for preset in presets or PRESETS
        for scheduled in way or WAYS
    ]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        found = list(pool.imap_unordered(_job, jobs, chunksize=1))
    for failed in sorted(one for one in found if isinstance(one, str)):
        print("left out:", failed)
    recordings = [one for one in found if isinstance(one, Figures)]
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(one) for one in recordings]), encoding="utf-8")
    families: dict[str, list[Figures]] = defaultdict(list)
    for one in recordings:
        families[one.family].append(one)
    print(f"{device} {dtype}")
    print("family | recordings | answers | tokens | differ | near-ties | largest even | odd | all")
    for family, members in sorted(families.items()):
        even, odd = ([m.largest for m in members if m.seed % 2 == half] for half in (0, 1))
        print(
            f"{family} | {len(members)} | {sum(m.answers for m in members)} | "
            f"{sum(m.tokens for m in members)} | {sum(m.differ for m in members)} | "
            f"{sum(m.near_ties for m in members)} | {max(even, default=0):.2e} | "
            f"{max(odd, default=0):.2e} | {max(m.largest_of_all for m in members):.2e} | "
            f"gaps {sorted(g for m in members for g in m.gaps)[-3:]} | "
            f"distances {sorted(d for m in members for d in m.distances)[-3:]}"
        )
