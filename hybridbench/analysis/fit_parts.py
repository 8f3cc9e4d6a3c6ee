"""A fit taken apart: the blocks without its warm-up or its steps, and how large its warm-up is."""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.gls import ModelFit, Problem, is_plain
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.shapes import Beside


def without_warmup(fit: ModelFit, problem: Problem) -> FloatArray:
    """The blocks less all of the fit but its level and its trend."""
    candidate = fit.model.candidate
    keep = np.zeros(fit.beta.size, dtype=bool)
    keep[0] = True
    if candidate.trend_column is not None:
        keep[1 + candidate.columns.index(candidate.trend_column)] = True
    design = np.column_stack(
        [
            np.ones(problem.y.size),
            problem.shapes.columns[:, list(candidate.columns)],
            problem.shapes.steps[:, list(fit.model.steps)],
        ]
    )
    less: FloatArray = problem.y - design[:, ~keep] @ fit.beta[~keep]
    return less


def without_steps(fit: ModelFit, problem: Problem, dips: Beside | None) -> FloatArray:
    """The blocks less what is neither pace nor its loss: fitted steps, and what comes back."""
    less: FloatArray = problem.y
    passing = () if dips is None else dips.columns
    for place in range(fit.model.candidate.beside):
        column = problem.shapes.columns[:, fit.model.candidate.columns[place]]
        if any(np.array_equal(column, dip) for dip in passing):
            less = less - fit.beta[1 + place] * column
    if fit.model.steps:
        heights = fit.beta[-len(fit.model.steps) :]
        less = less - problem.shapes.steps[:, list(fit.model.steps)] @ heights
    return less


def warmup_size(fit: ModelFit, problem: Problem) -> float:
    """How much the fitted warm-up shape moves over the window."""
    candidate = fit.model.candidate
    shape = [
        (1 + i, column)
        for i, column in enumerate(candidate.columns)
        if column != candidate.trend_column
    ]
    if is_plain(fit.model) or not shape:
        return 0.0
    places, columns = zip(*shape, strict=True)
    return float(np.ptp(problem.shapes.columns[:, list(columns)] @ fit.beta[list(places)]))
