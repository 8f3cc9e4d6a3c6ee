"""The reference: the same engine without reuse, computing one answer at a time.

It has the version, weights and injected defects of the engine under soak, but none of the features
under test: no prefix sharing, chunks, overlap, drafts, pages or other requests in the batch.  Every
answer gets a new engine, so that each pool is new and zeroed.

The distance of a token that differs is the difference in logits that rounding must account for, in
standard deviations of the logits.  For a greedy token it is the best logit minus the emitted
token's logit.  An error of at most d in every logit changes this by at most 2 d, and a cumulative
probability at temperature T by at most d / (2 T).  So a sampled token whose random number lies
``gap`` outside the emitted token's interval has the distance 4 T gap.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hybridbench.engine.assembly import device_of, model_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EventKind
from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.kernels.dispatch import REFERENCE, kernels_for
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.model_runner import LanguageModel
from hybridbench.engine.next_token import choose_next_tokens, uniform
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EngineConfig, HiCache, HiCacheStorage
from hybridbench.records.answers import ROUTING_GAP_LEAST, unpack_tokens
from hybridbench.records.messages import Recompute, Recomputed, ReferenceReady, Shutdown
from hybridbench.targets.wire import WorkerWire

_NICE: Final = 19
_NOTHING = -1
# At most this many near-ties of an answer are tried; with more, the closest one is assumed to be
# the cause.
_NEAR_TIES_MAX: Final = 16
# Tokens of an answer that one step checks.
_CHAIN: Final = 32


class EmittedTokens:
    """Drafts the answer that was emitted, so that one step can check many of its tokens."""

    def __init__(self, output: Sequence[int]) -> None:
        self._output = output

    def propose(self, prompt: Sequence[int], output: Sequence[int], most: int) -> list[int]:
        del prompt
        return list(self._output[len(output) : len(output) + most])


class WatchedModel:
    """A model that keeps the last logits, [B, vocab], in ``logits``; None once taken."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.config = model.config
        self.logits: Tensor | None = None

    def take(self) -> Tensor | None:
        """Return and forget the last step's logits; None if the model did not run since."""
        logits, self.logits = self.logits, None
        return logits

    def forward(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> Tensor:
        self.logits = self._model.forward(batch, kv_pool)
        return self.logits


class NearTie(NamedTuple):
    """A choice of experts that rounding may reverse."""

    gap: float
    """Score of the last chosen expert minus the next one's, over the scores' root mean square."""
    call: int
    """Index of the ``topk`` call since the watch began."""
    row: int
    """The token's row in that call."""


class RoutingWatch(TorchFunctionMode):
    """Records, while active, how close each choice of experts was to a different choice.

    Every model family chooses its experts with ``topk``; nothing else in a step calls it, unless
    tokens are filtered.
    """

    def __init__(self, reversed_tie: NearTie | None = None) -> None:
        """At ``reversed_tie``, the next expert is chosen in place of the last one."""
        super().__init__()
        self.least_gap: float | None = None
        self.near_ties: list[NearTie] = []
        self._reversed_tie = reversed_tie
        self._calls = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        found = func(*args, **(kwargs or {}))
        if func in {torch.topk, Tensor.topk}:
            with torch._C.DisableTorchFunction():
                self._look(found, *args, **(kwargs or {}))
        return found

    def _look(
        self, found: Sequence[Tensor], scores: Tensor, k: int, *_args: object, **_kwargs: object
    ) -> None:
        call, self._calls = self._calls, self._calls + 1
        if k >= scores.shape[-1]:
            return
        values, experts = scores.sort(dim=-1, descending=True)
        # Not their standard deviation: with two scores, it is as small as their gap.
        sizes = scores.float().square().mean(dim=-1).sqrt()
        gaps = (values[:, k - 1] - values[:, k]).float() / sizes
        least = float(gaps.min())
        self.least_gap = least if self.least_gap is None else min(self.least_gap, least)
        near = (gaps < ROUTING_GAP_LEAST).nonzero().flatten().tolist()
        self.near_ties += [NearTie(float(gaps[row]), call, row) for row in near]
        tie = self._reversed_tie
        if tie is not None and tie.call == call:
            best, chosen = found
            best[tie.row, -1], chosen[tie.row, -1] = values[tie.row, k], experts[tie.row, k]


class Reference:
    """Owns the weights, and compares answers with what it computes for the same prompt."""

    def __init__(self, config: EngineConfig) -> None:
        """Build or load the model of ``config``, as the engine under soak does.

        Raises:
            ConfigError: the model's name or its files are invalid.
        """
        self._config = without_reuse(config)
        # An engine that speculates must not be checked by its own verification.
        self._may_check_chains = config.speculative_algorithm is None
        # A device kernel would hide its choice of experts from RoutingWatch.
        kernels = replace(kernels_for(device_of(config.device)), route=REFERENCE.route)
        self.model = WatchedModel(model_of(config, kernels)[0])

    def confirms(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        temperature: float = 0.0,
        seed: int = 0,
    ) -> bool:
        """Return whether the answer passes a check of many tokens per step.

        This takes a fraction of the time of ``compare``, which decides where this returns False.
        """
        if not self._may_check_chains:
            return False
        engine = self._engine_for(len(prompt) + len(output), drafter=EmittedTokens(output))
        engine.submit("answer", prompt, _params(output, temperature, seed))
        while engine.has_work:
            ended = next((e for e in engine.step() if e.kind is EventKind.FINISHED), None)
            if ended is not None:
                return list(ended.output_ids) == list(output)
            req = engine.find("answer")
            if req is None or req.output_ids != list(output[: len(req.output_ids)]):
                return False
        return False

    def compare(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        chunk: int = 0,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> tuple[int, float, int]:
        """Recompute ``output`` until a token differs.

        Args:
            prompt: tokens, at least one.
            output: the tokens emitted for it.
            chunk: prompt tokens per step; 0 computes all at once.
            temperature, seed: how the tokens were sampled; temperature 0 is greedy.

        Returns:
            The number of tokens that agree, and for the first that differs, its distance and the
            reference's token; 0.0 and -1 if all agree.

        Raises:
            ValueError: the engine aborted the request, or ended it early.
        """
        engine = self._engine_for(len(prompt) + len(output), chunk)
        params = _params(output, temperature, seed)
        engine.submit("answer", prompt, params)
        agreed = 0
        while engine.has_work:
            events = engine.step()
            failed = [e.reason for e in events if e.kind in {EventKind.ABORTED, EventKind.REJECTED}]
            if failed:
                raise ValueError(failed[0])
            produced = engine.counters.output_tokens
            row = self.model.take()
            if produced == agreed or row is None:
                continue  # a chunk that does not end the prompt
            place, emitted = len(prompt) + agreed, output[agreed]
            [own] = choose_next_tokens(row, [params], [place])
            if own != emitted:
                return agreed, _distance(row[0].double(), emitted, params, place), own
            agreed = produced
        if agreed != len(output):
            raise ValueError(f"the reference ended after {agreed} of {len(output)} tokens")
        return agreed, 0.0, _NOTHING

    def _engine_for(
        self, tokens: int, chunk: int = 0, drafter: EmittedTokens | None = None
    ) -> Engine:
        config = replace(
            self._config,
            kv_tokens=tokens + 2,
            max_context_len=max(2, tokens),
            chunked_prefill_size=chunk or None,
            max_prefill_tokens=max(1, chunk or tokens),
        )
        if drafter is None:
            return Engine(config, model=self.model)
        config = replace(config, speculative_algorithm="NGRAM", speculative_num_draft_tokens=_CHAIN)
        return Engine(config, model=self.model, drafter=drafter)


def _params(output: Sequence[int], temperature: float, seed: int) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=len(output), ignore_eos=True, temperature=temperature, seed=seed
    )


def _distance(logits: Tensor, emitted: int, params: SamplingParams, place: int) -> float:
    """Return how far rounding must move ``logits`` for ``emitted`` to be the token at ``place``."""
    if params.is_greedy:
        return float((logits.max() - logits[emitted]) / logits.std())
    ends = ((logits - logits.max()) / params.temperature).softmax(dim=0).cumsum(dim=0)
    begin = float(ends[emitted - 1]) if emitted else 0.0
    drawn = uniform(params.seed, place)
    gap = max(begin - drawn, drawn - float(ends[emitted]), 0.0)
    return 4 * params.temperature * gap / float(logits.std())


def without_reuse(config: EngineConfig) -> EngineConfig:
    """Return ``config`` for single requests, without sharing, chunking, overlap or drafts."""
    return EngineConfig(
        model=config.model,
        device=config.device,
        dtype=config.dtype,
        seed=config.seed,
        cache="chunk",
        page_size=1,
        mamba_slots=2,
        max_running_requests=1,
        check_level="off",
        check_owners=config.check_owners,
        mamba_scheduler_strategy="no_buffer",
        hicache=HiCache(),
        hicache_storage=HiCacheStorage(),
    )


def serve_reference(config: EngineConfig, wire: WorkerWire) -> None:
    """Answer Recompute until Shutdown, at the lowest priority of the system.

    Raises:
        ConfigError: the model cannot be built.
        WireClosedError: the parent has exited.
    """
    os.nice(_NICE)
    reference = Reference(config)
    model = reference.model.config
    wire.send(
        ReferenceReady(
            family=model.model_type,
            layers=len(model.layer_types),
            hidden_size=model.hidden_size,
            sliding_window=model.sliding_window,
            cpu_s=time.process_time(),
        )
    )
    while True:
        for message in wire.receive():
            if isinstance(message, Shutdown):
                return
            if isinstance(message, Recompute):
                wire.send(recomputed(reference, message))


def recomputed(reference: Reference, asked: Recompute) -> Recomputed:
    """Return the reply to ``asked``; a failed computation is an error, not a difference."""
    prompt, output = unpack_tokens(asked.prompt), unpack_tokens(asked.output)
    drawn = asked.temperature, asked.seed
    agreed, distance, best, gap, error = 0, 0.0, _NOTHING, None, ""
    try:
        if asked.careful:
            (agreed, distance, best), gap = _carefully(
                lambda: reference.compare(prompt, output, asked.chunk, *drawn)
            )
        elif reference.confirms(prompt, output, *drawn):
            agreed = len(output)
        else:
            agreed, distance, best = reference.compare(prompt, output, asked.chunk, *drawn)
    except Exception as failed:
        # An injected defect may break the reference too: then nothing is known about the answer.
        error = f"{type(failed).__name__}: {failed}"
    differs = best != _NOTHING
    return Recomputed(
        probe_id=asked.probe_id,
        compared=agreed + differs,
        wrong_place=agreed if differs else _NOTHING,
        distance=distance,
        emitted=output[agreed] if differs else _NOTHING,
        best=best,
        cpu_s=time.process_time(),
        routing_gap=gap,
        error=error,
    )


def _carefully(
    compare: Callable[[], tuple[int, float, int]],
) -> tuple[tuple[int, float, int], float | None]:
    """Return the result of ``compare``, and the gap of the near-tie that explains a difference.

    A near-tie explains it if more of the answer agrees once that choice of experts is reversed;
    the gap is None if no near-tie does.
    """
    with RoutingWatch() as watch:
        found = compare()
    if found[2] == _NOTHING:
        return found, None
    near = sorted(watch.near_ties)
    if len(near) > _NEAR_TIES_MAX:
        return found, near[0].gap
    for tie in near:
        with RoutingWatch(tie):
            agreed, _, own = compare()
        if own == _NOTHING or agreed > found[0]:
            return found, tie.gap
    return found, None
