"""Measure how far a model's logits are from transformers', for every way to compute a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hybridbench.engine.models.registry import load_model
from tests.model_steps import Running, Stepper

LENGTHS = (70, 1, 129, 2, 33)
DECODE_STEPS = 4
SPLITS = ((1, 1, 65, 1, 3), (2, 0, 1, 0, 20), (66, 0, 62, 1, 10), (1, 0, 1, 0, 0))

Look: TypeAlias = Callable[[Stepper, Running, list[int]], None]


def texts(vocab: int) -> list[list[int]]:
    """Return texts of different lengths."""
    rng = np.random.default_rng(7)
    return [rng.integers(0, vocab, length + DECODE_STEPS).tolist() for length in LENGTHS]


def set_frequencies(rotary: Any, config: Any) -> None:
    """Recompute a transformers model's rotary frequencies, with ``torch.float32`` as patched."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    of_type = ROPE_INIT_FUNCTIONS.get(rotary.rope_type, rotary.compute_default_rope_parameters)
    rotary.inv_freq, rotary.attention_scaling = of_type(config)


class Agreement:
    """Runs a checkpoint, and records differences from each text's expected logits [T, vocab]."""

    def __init__(self, path: Path, expected: Sequence[Tensor], dtype: torch.dtype) -> None:
        self._model = load_model(path, dtype, "cpu")
        self._texts = texts(self._model.config.vocab_size)
        self._expected = expected
        self.differences: list[float] = []

    def run(self, look: Look | None = None) -> None:
        """Prefill at once and in odd pieces, decode, and reuse a prefix of another request.

        ``look`` is called with requests and the text that they have computed so far.
        """
        stepper = Stepper(self._model, seed=1)
        requests = [stepper.start() for _ in LENGTHS]
        prompts = [text[:length] for text, length in zip(self._texts, LENGTHS, strict=True)]
        self._compare(
            stepper.extend(requests, prompts), [(i, n - 1) for i, n in enumerate(LENGTHS)]
        )
        for step in range(DECODE_STEPS):
            tokens = [text[n + step] for text, n in zip(self._texts, LENGTHS, strict=True)]
            places = [(i, n + step) for i, n in enumerate(LENGTHS)]
            self._compare(stepper.decode(requests, tokens), places)
        if look is not None:
            for request, text in zip(requests, self._texts, strict=True):
                look(stepper, request, text)
        self._run_in_pieces(look)

    def _run_in_pieces(self, look: Look | None) -> None:
        stepper = Stepper(self._model, seed=2)
        requests = [stepper.start() for _ in LENGTHS]
        for sizes in SPLITS:
            active = [i for i, size in enumerate(sizes) if size]
            begins = {i: requests[i].length for i in active}
            new = [self._texts[i][begins[i] : begins[i] + sizes[i]] for i in active]
            rows = stepper.extend([requests[i] for i in active], new)
            self._compare(rows, [(i, begins[i] + sizes[i] - 1) for i in active])
        child = stepper.fork(requests[2])
        text = self._texts[2]
        self._compare(stepper.extend([child], [text[129:132]]), [(2, 131)])
        if look is not None:
            look(stepper, child, text[:132])
            look(stepper, requests[2], text[:129])

    def _compare(self, rows: Tensor, places: list[tuple[int, int]]) -> None:
        for row, (text, position) in zip(rows, places, strict=True):
            self.differences.append(float((row - self._expected[text][position]).abs().max()))
