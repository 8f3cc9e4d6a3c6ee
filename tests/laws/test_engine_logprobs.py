"""Logprobs are those of the model's logits at each position, whatever path a request took.

The reference logits are from an engine without reuse that runs one request at a time.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent
from hybridbench.engine.model_runner import LanguageModel
from hybridbench.engine.next_token import TokenLogprobs
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.clock import FakeClock
from hybridbench.worker.reference import WatchedModel
from tests.builders import NANO_MODEL, make_engine, nano_model
from tests.digest_model import DigestModel
from tests.laws.test_sessions_equal_no_reuse import AHEAD, HYBRID, hybrid_program
from tests.session_programs import SessionProgram

# Events that each mode must produce, besides chunks, turns and retracts.
MET = {
    "no step ahead": [],
    "overlap": ["late_tokens", "surplus_steps"],
    "guesses": ["drafts_accepted"],
    "both": ["late_tokens", "drafts_accepted"],
}
MOST = 5


class Plain:
    """An engine without sharing, whose logits are kept at each step."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = WatchedModel(model)
        self._engine = make_engine(
            model=self._model, cache="chunk", max_running_requests=1, chunked_prefill_size=None,
            kv_tokens=1024, max_prefill_tokens=512, check_level="off",
        )  # fmt: skip

    def logprobs(
        self, prompt: list[int], output: list[int], params: SamplingParams
    ) -> list[list[float]]:
        """Return the logprobs of the whole vocabulary at each position of ``output``."""
        if not output:
            return []
        params = replace(params, logprobs=None, max_new_tokens=len(output))
        self._engine.submit("one", prompt, params)
        rows = []
        while self._engine.has_work:
            ended = [event for event in self._engine.step() if event.ends_request]
            logits = self._model.take()
            assert logits is not None
            rows.append(logits[0].float().log_softmax(dim=-1).tolist())
        assert list(ended[0].output_ids) == output
        return rows


def assert_as_the_model_has_it(
    given: TokenLogprobs, token: int, every: list[float], count: int, exact: float
) -> None:
    assert given.logprob == pytest.approx(every[token], abs=exact)
    ids, values = [id_ for id_, _ in given.best], [value for _, value in given.best]
    assert len(set(ids)) == count
    assert values == pytest.approx(sorted(every, reverse=True)[:count], abs=exact)
    assert values == pytest.approx([every[id_] for id_ in ids], abs=exact)


def ask(program: SessionProgram) -> dict[str, EngineEvent]:
    """Make two of three future requests ask for logprobs; return a dict filled with their ends."""
    ends: dict[str, EngineEvent] = {}
    params, note = program._params, program._note

    def asking(max_new_tokens: int) -> SamplingParams:
        number = len(program.sent)
        return replace(params(max_new_tokens), logprobs=number % MOST if number % 3 else None)

    def noting(event: EngineEvent) -> None:
        note(event)
        if event.ends_request:
            ends[event.rid] = event

    program._params, program._note = asking, noting  # type: ignore[method-assign]
    return ends


def check(program: SessionProgram, ends: dict[str, EngineEvent], plain: Plain, exact: float) -> int:
    """Compare the logprobs of all requests; return the number of tokens compared."""
    compared = 0
    for rid, sent in program.sent.items():
        event, count = ends.get(rid), sent.params.logprobs
        if event is None or count is None:
            assert event is None or event.logprobs == ()
            continue
        rows = plain.logprobs(sent.prompt, sent.output, sent.params)
        for one, token, every in zip(event.logprobs, sent.output, rows, strict=True):
            assert_as_the_model_has_it(one, token, every, count, exact)
        compared += len(rows)
    return compared


@pytest.mark.parametrize("share", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ahead", MET)
def test_logprobs_are_those_of_an_engine_that_shares_nothing(ahead: str, share: int) -> None:
    plain = Plain(DigestModel(NANO_MODEL))
    seen: Counter[str] = Counter()
    # Every second engine, alternating between the modes; or all with a ``share`` of 1.
    for seed, name in list(enumerate(HYBRID))[list(MET).index(ahead) % share :: share]:
        program = hybrid_program(name, seed, **AHEAD.get(ahead, {}))
        ends = ask(program)

        program.run(200, push_back_share=0.02)

        seen["compared"] += check(program, ends, plain, exact=0.0)
        seen.update(program.engine.counters.as_dict())

    assert seen["compared"] > 400 // share
    events = ("prefill_chunks", "session_turns", "retracts", "abort_decode", "prefix_hits")
    for event in (*events, *MET[ahead]):
        assert seen[event] > 0, (event, seen)


@pytest.mark.parametrize("ahead", MET)
def test_logprobs_of_a_real_model_are_those_of_its_plain_forward(ahead: str) -> None:
    clock, changes = FakeClock(), {**HYBRID["kv tokens bind"], **AHEAD.get(ahead, {})}
    engine = make_engine(clock=clock, model=nano_model(), **changes)
    program = SessionProgram(engine, random.Random(7), clock)
    ends = ask(program)

    program.run(90, push_back_share=0.02)

    assert check(program, ends, Plain(nano_model()), exact=1e-6) > 20


def live_outputs(engine: Engine, rids: list[str]) -> list[tuple[int, int]]:
    """Return each live request's numbers of tokens and of logprobs."""
    live = [req for rid in rids if (req := engine.find(rid)) is not None]
    return [(len(req.output_ids), len(req.logprobs or ())) for req in live]


@pytest.mark.parametrize("ahead", MET)
def test_a_live_request_has_logprobs_of_exactly_its_tokens_after_each_step(ahead: str) -> None:
    changes: dict[str, Any] = AHEAD.get(ahead, {})
    engine = make_engine(chunked_prefill_size=7, **changes)
    rids = [f"r{number}" for number in range(4)]
    for number, rid in enumerate(rids):
        prompt = [number % 4 for number in range(10 + number)]
        engine.submit(rid, prompt, SamplingParams(max_new_tokens=20, logprobs=number))

    while engine.has_work:
        engine.step()
        for tokens, logprobs in live_outputs(engine, rids):
            assert tokens == logprobs
