"""Measure, in paired blocks, what sampling answers for the reference costs the engine.

    python -m benchmarks answer-cost [--rounds 30] [--requests 100]

One engine serves the same traffic in pairs of blocks, with sampling (and encoding of the sample)
and without, in random order.  The ratios of the pairs' CPU times are averaged.  Then two copies of
the process serve the same traffic, and their private memory is compared.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from pathlib import Path
from typing import Annotated

import msgspec
import torch
import typer

from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.runs.plan import ANSWERS_KEPT
from hybridbench.worker.answers import AnswerSample


def block(
    engine: Engine, sample: AnswerSample, requests: int, rng: random.Random
) -> tuple[float, float]:
    """Serve ``requests``; return the CPU time in total and of the sampling, in seconds."""
    vocab, sent, encoder = engine.model_config.vocab_size, 0, msgspec.msgpack.Encoder()
    prompts = [[rng.randrange(vocab) for _ in range(rng.randrange(50, 200))] for _ in range(6)]
    engine.flush_cache()  # Both blocks of a pair begin in the same state.
    began_s, draw_s = time.process_time(), 0.0
    while sent < requests or engine.has_work:
        while sent < requests and engine.waiting_requests < 4:
            prompt = [*rng.choice(prompts), *(rng.randrange(vocab) for _ in range(20))]
            engine.submit(str(sent), prompt, SamplingParams(max_new_tokens=24, ignore_eos=True))
            sent += 1
        events = engine.step()
        stepped_s = time.thread_time()
        for event in events:
            if event.req is not None:
                sample.offer(event.req)
        drawn = sample.take()
        if drawn:
            encoder.encode(drawn)
        draw_s += time.thread_time() - stepped_s
    return time.process_time() - began_s, draw_s


def private_bytes(engine: Engine, sample: AnswerSample, requests: int, seed: int) -> int:
    """Return the private memory, in bytes, of a copy of this process that has served ``requests``.

    Pages shared with this process count once the copy has written to them.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        block(engine, sample, requests, random.Random(seed))
        rows = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
        kib = sum(int(row.split()[1]) for row in rows if row.startswith("Private_"))
        os.write(write, str(1024 * kib).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = int(pipe.read())
    os.waitpid(child, 0)
    return found


def interval(values: list[float]) -> tuple[float, float, float]:
    """The mean and its 95% confidence interval."""
    mean = statistics.fmean(values)
    half = 2.0 * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def main(
    model: Annotated[str, typer.Option(help="A preset.")] = "qwen3-next-nano",
    rounds: Annotated[int, typer.Option(min=2, help="Measured pairs of blocks.")] = 30,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a block.")] = 100,
) -> None:
    """What sampling answers costs the engine under soak: processor time and private memory.

    Differences are printed with their 95% intervals.
    """
    torch.set_num_threads(1)
    config = EngineConfig(model=model, kv_tokens=8192, max_context_len=512)
    engine, without = Engine(config), AnswerSample(0, config)
    block(engine, without, requests, random.Random(0))
    logs, shares, each_us = [], [], []
    for seed in range(rounds):
        # A new sample takes nearly every request, so this measures the most that it can cost.
        samples = {True: AnswerSample(ANSWERS_KEPT, config), False: without}
        order = [True, False] if random.Random(seed).random() < 0.5 else [False, True]
        took = {
            drawn: block(engine, samples[drawn], requests, random.Random(seed)) for drawn in order
        }
        (with_s, draw_s), (without_s, _) = took[True], took[False]
        logs.append(math.log(with_s / without_s))
        shares.append(draw_s / with_s)
        each_us.append(draw_s / requests * 1e6)
    ends = [math.expm1(end) * 100 for end in interval(logs)]
    print(f"{rounds} pairs of {requests} requests on {model}")
    print(
        f"the draw itself: {statistics.median(shares):.3%} of the processor time, "
        f"{statistics.median(each_us):.0f} us for each request"
    )
    print("processor time with the draw: {:+.2f}% ({:+.2f} to {:+.2f}%)".format(*ends))
    more_kib = []
    for seed in range(rounds):
        sample = AnswerSample(ANSWERS_KEPT, config)
        drawn = private_bytes(engine, sample, requests, seed)
        more_kib.append((drawn - private_bytes(engine, without, requests, seed)) / 1024)
    print(
        "private memory with the draw: {:+.0f} KiB ({:+.0f} to {:+.0f})".format(*interval(more_kib))
    )
