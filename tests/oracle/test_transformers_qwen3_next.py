"""Qwen3-Next against transformers: logits and states, for every way to compute a token.

Bounds in float32: 1e-4 for the median difference and for states.  Each position may differ by 1e-3,
or by twice the difference between transformers' own chunked and token-by-token paths.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridbench.engine.models.registry import load_model
from tests.model_steps import Running, Stepper
from tests.oracle.agreement import set_frequencies
from tests.oracle.hf_models import SHAPES, Oracle, make_oracle

LENGTHS = (70, 1, 129, 2, 64)
DECODE_STEPS = 5
VOCAB = 97


@pytest.fixture(scope="module", params=SHAPES)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return make_oracle(request.param, tmp_path_factory.mktemp("oracle"))


class Expected:
    """Logits of transformers for some texts, with its numerical noise at each position."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        rng = np.random.default_rng(7)
        self.texts: list[list[int]] = [
            rng.integers(0, VOCAB, length + DECODE_STEPS).tolist() for length in LENGTHS
        ]
        self.logits = [oracle.logits(text) for text in self.texts]
        self.differences: list[float] = []

    def compare(self, row: Tensor, text: int, position: int) -> None:
        """Check ``row``, our logits after the token at ``position``."""
        difference = float((row - self.logits[text][position]).abs().max())
        # Computed only when needed: the token-by-token path takes transformers ten times as long.
        if difference > 1e-3:
            assert difference <= 2 * self.noise(text)[position], (text, position)
        self.differences.append(difference)

    @cache  # noqa: B019  # lives only while this module's tests run
    def noise(self, text: int) -> list[float]:
        """Return how much the two paths of transformers differ at each position."""
        stepped = self._oracle.stepped_logits(self.texts[text])
        noise: list[float] = (stepped - self.logits[text]).abs().amax(dim=-1).tolist()
        return noise

    def close(self) -> None:
        assert float(np.median(self.differences)) <= 1e-4


@pytest.fixture(scope="module")
def expected(oracle: Oracle) -> Expected:
    return Expected(oracle)


@pytest.fixture
def stepper(oracle: Oracle) -> Stepper:
    return Stepper(load_model(oracle.path, torch.float32, "cpu"))


def assert_states(stepper: Stepper, request: Running, oracle: Oracle, text: list[int]) -> None:
    for layer, (conv, recurrent) in oracle.states(text).items():
        ours_conv, ours_recurrent = stepper.layer_state(layer, request)
        # If a text is shorter than the window, both windows are padded with zeros.
        assert float((ours_conv - conv).abs().max()) <= 1e-4
        assert float((ours_recurrent - recurrent).abs().max()) <= 1e-4


def test_ragged_prefill_and_decode_agree_with_transformers(
    oracle: Oracle, expected: Expected, stepper: Stepper
) -> None:
    requests = [stepper.start() for _ in LENGTHS]
    prompts = [text[:length] for text, length in zip(expected.texts, LENGTHS, strict=True)]

    rows = stepper.extend(requests, prompts)
    for i, length in enumerate(LENGTHS):
        expected.compare(rows[i], i, length - 1)
    for request, prompt in zip(requests, prompts, strict=True):
        assert_states(stepper, request, oracle, prompt)
    for step in range(DECODE_STEPS):
        tokens = [text[n + step] for text, n in zip(expected.texts, LENGTHS, strict=True)]
        rows = stepper.decode(requests, tokens)
        for i, length in enumerate(LENGTHS):
            expected.compare(rows[i], i, length + step)

    for request, text in zip(requests, expected.texts, strict=True):
        assert_states(stepper, request, oracle, text)
    expected.close()


def test_prefill_split_at_odd_places_agrees_with_transformers(
    oracle: Oracle, expected: Expected, stepper: Stepper
) -> None:
    requests = [stepper.start() for _ in LENGTHS]
    positions = [0] * len(LENGTHS)

    for sizes in ((1, 1, 65, 1, 3), (2, 0, 1, 0, 60), (66, 0, 62, 1, 1), (1, 0, 1, 0, 0)):
        active = [i for i, size in enumerate(sizes) if size]
        tokens = [expected.texts[i][positions[i] : positions[i] + sizes[i]] for i in active]
        rows = stepper.extend([requests[i] for i in active], tokens)
        for row, i in zip(rows, active, strict=True):
            positions[i] += sizes[i]
            expected.compare(row, i, positions[i] - 1)

    assert positions == list(LENGTHS)
    for i, request in enumerate(requests):
        assert_states(stepper, request, oracle, expected.texts[i][: LENGTHS[i]])
    expected.close()


def test_prefill_over_a_cached_prefix_agrees_with_transformers(
    oracle: Oracle, expected: Expected, stepper: Stepper
) -> None:
    text = expected.texts[2]
    parent = stepper.start()
    stepper.extend([parent], [text[:61]])
    before = [view.clone() for view in stepper.layer_state(_first_linear(oracle), parent)]

    children = [stepper.fork(parent), stepper.fork(parent)]
    rows = stepper.extend(children, [text[61:129], text[61:62]])

    expected.compare(rows[0], 2, 128)
    expected.compare(rows[1], 2, 61)
    assert_states(stepper, children[0], oracle, text[:129])
    for view, old in zip(stepper.layer_state(_first_linear(oracle), parent), before, strict=True):
        assert torch.equal(view, old)


def test_float64_agrees_with_transformers_made_exact(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers computes norms and states in float32 at any dtype; here in float64."""
    exact = make_oracle_exact(oracle, monkeypatch)
    text: list[int] = np.random.default_rng(3).integers(0, VOCAB, 135).tolist()
    logits = exact.logits(text)
    states = exact.states(text)
    monkeypatch.undo()
    stepper = Stepper(load_model(oracle.path, torch.float64, "cpu"))
    request = stepper.start()

    differences = []
    for begin, end in ((0, 3), (3, 70), (70, 133)):
        row = stepper.extend([request], [text[begin:end]])[0]
        differences.append((row - logits[end - 1]).abs().max())
    for position in (133, 134):
        row = stepper.decode([request], [text[position]])[0]
        differences.append((row - logits[position]).abs().max())

    assert float(max(differences)) <= 1e-10
    for layer, (conv, recurrent) in states.items():
        ours_conv, ours_recurrent = stepper.layer_state(layer, request)
        assert float((ours_conv - conv).abs().max()) <= 1e-10
        assert float((ours_recurrent - recurrent).abs().max()) <= 1e-10


def make_oracle_exact(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> Oracle:
    """Load the saved model in float64; ``float()`` and ``torch.float32`` then mean float64."""
    model = type(oracle.model).from_pretrained(
        oracle.path,
        dtype=torch.float64,
        experts_implementation="eager",
        attn_implementation="eager",
    )
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    text = getattr(model.model, "language_model", model.model)
    set_frequencies(text.rotary_emb, text.config)
    return Oracle(model, oracle.path)


def _first_linear(oracle: Oracle) -> int:
    return next(iter(oracle.states([1])))
