"""Estimate the growth of one series, with its interval and the reasons.

Units, metric thresholds and run verdicts are added by ``metric_trend``.  For the method and its
measured performance see detection.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.facts.readings import are_readings, without_dust
from hybridbench.analysis.record import FloatArray
from hybridbench.analysis.trend.blocks import (
    BYTES_QUANTILE,
    COUNT_QUANTILE,
    MAX_BLOCKS,
    Blocks,
    make_blocks,
    without_load,
)
from hybridbench.analysis.trend.criteria import (
    HALF,
    Question,
    agreed,
    chance,
    deciding,
    goes_on,
    is_warm_by_middle,
    least_sure,
    measure_pace,
    reason,
    slowed,
    still_warms,
    stops_at_the_end,
    tail,
)
from hybridbench.analysis.trend.gls import (
    Model,
    ModelFit,
    Problem,
    cautious_phi,
    choose_phi,
    fit_model,
    rank_models,
    straight_line,
    without_beside,
    without_steps,
)
from hybridbench.analysis.trend.nuisance import (
    block_load,
    block_peak,
    climbs_alike,
    find_dips,
    find_swing,
)
from hybridbench.analysis.trend.one_cycle import growth_of_lows, rises_again
from hybridbench.analysis.trend.random_walk import RandomWalkFit, fit_random_walk
from hybridbench.analysis.trend.sawtooth import MIN_TROUGHS, Sawtooth, find_sawtooth, usable_troughs
from hybridbench.analysis.trend.shapes import SLOWEST, Beside, build_shapes

MIN_SAMPLES = 24

# Chosen on seed 50000 of the curve corpus (detection.md, "How fresh these figures are").
_REPORT_WITHIN = 4.5  # BIC: models this close widen the interval
_MOST_MODELS = 60
_LEAST_WIDTH = 0.01  # an interval narrower than 1% of the rate would ignore model error
_TROUGHS_KEEP = 0.6  # share of the claimed growth that each trough must keep
_TROUGHS_FOR_MODELS = 16
# Chosen on seeds 1000, 40000 and 50000 of the curve corpus (detection.md).  Autocorrelation above
# the first value is mostly misfit; then the later half counts if its own autocorrelation is below
# the second.
_HARDLY_FORGETS, _FORGETS_AGAIN = 0.75, 0.6
_TWO_SIDED = 0.975  # quantile of an end of a 95% interval
_WORK_DIFFERS = 0.03  # work that differs less from time, or from other work, is not tried


@dataclass(frozen=True)
class Options:
    """Thresholds of the test, and limits of the models that are tried."""

    floor: float = 0.0  # growth over the window that must be exceeded to call a leak
    line_floor: float | None = None  # the same for a plain line; ``floor`` if None
    alpha: float = 0.001
    quantile: float = BYTES_QUANTILE
    slowest: float = SLOWEST  # of the ramps and exponentials, as a share of the window
    collected: bool = False  # a garbage collector empties it, so a fall ends a tooth
    max_blocks: int = MAX_BLOCKS
    max_steps: int = 3
    pace_from: float = HALF  # the parts of the window from here on must keep pace

    @property
    def question(self) -> Question:
        line_floor = self.floor if self.line_floor is None else self.line_floor
        return Question(self.floor, line_floor, self.alpha, self.max_steps)


@dataclass(frozen=True)
class Samples:
    """One series with its possible drivers, all at the same times."""

    t_s: FloatArray
    value: FloatArray
    works: Sequence[FloatArray] = ()  # cumulative counters
    load: FloatArray | None = None  # requests in flight


@dataclass(frozen=True)
class Estimate:
    """Growth over the whole window at the current rate, with its interval and the reasons."""

    blocks: Blocks
    fitted: FloatArray  # at the blocks
    band: FloatArray  # half width of the line's interval at the blocks
    model: str
    growth: float
    lower: float
    upper: float
    leak: bool  # every plausible model has a trend above the floor, and it does not fade
    reason: str  # code of why not, which ``metric_trend`` explains; empty for a leak
    # Growth per window before and after it slowed: at a late knee, or in the last two quarters.
    fade: tuple[float, float] | None
    phi: float = 0.0
    floor: float = 0.0  # the floor that growth was compared with
    p_value: float = 1.0  # for growth up to the floor; the largest among the plausible models
    slowed: bool = False  # there is a late knee; growth before it counts
    returns: bool = False  # in every plausible model, memory returns after its falls
    warms: bool = False  # a warm-up is a notable part of the growth in the second half
    lows: float = 0.0  # growth between the lowest levels before and after a peak; 0 for a leak


def estimate(samples: Samples, options: Options | None = None) -> Estimate:
    """Judge one series, ignoring samples that are not readings.

    Raises:
        ValueError: for fewer than 24 samples; callers phrase their own message.
    """
    samples = _readable(samples)
    if samples.t_s.size < MIN_SAMPLES:
        raise ValueError(f"{samples.t_s.size} samples are too few; {MIN_SAMPLES} are needed")
    opts = options or Options()
    whole = _blocks_of(samples, opts)
    found = _estimate(samples, whole, opts)
    load = samples.load
    if (
        found.leak
        and load is not None
        and climbs_alike(samples.t_s, load, found.blocks, found.fitted, found.growth)
    ):
        return replace(found, leak=False, reason="load-climbs")
    # The estimate may cover only the later half, which lacks the earlier part of a swing.
    if found.leak:
        return replace(found, leak=False, reason="one-cycle") if rises_again(whole) else found
    per_window = (found.blocks.end_s - found.blocks.start_s) / (whole.end_s - whole.start_s)
    return replace(found, lows=per_window * growth_of_lows(whole))


def _readable(samples: Samples) -> Samples:
    """Keep the samples whose value is a reading; ignore work or load with invalid values."""
    keep = are_readings(samples.value)
    works = [work if are_readings(work).all() else np.zeros_like(work) for work in samples.works]
    load = samples.load
    if load is not None and not are_readings(load).all():
        load = None
    return Samples(
        samples.t_s[keep],
        without_dust(samples.value[keep]),
        [without_dust(work[keep]) for work in works],
        None if load is None else without_dust(load[keep]),
    )


def _blocks_of(samples: Samples, opts: Options) -> Blocks:
    return make_blocks(samples.t_s, _without_load(samples), opts.quantile, opts.max_blocks)


def _estimate(samples: Samples, blocks: Blocks, opts: Options) -> Estimate:
    if not np.ptp(blocks.value):
        return _constant(blocks)
    sawtooth = find_sawtooth(samples.t_s, _without_load(samples))
    by_troughs = None
    if sawtooth is not None and sawtooth.fall.size >= 2:
        by_troughs = _from_troughs(samples, sawtooth, blocks, opts)
    if by_troughs is not None and by_troughs.leak:
        return by_troughs
    by_models = _from_models(samples, blocks, opts, sawtooth)
    forgets = by_models.phi < _HARDLY_FORGETS
    if by_troughs is None and not (forgets or by_models.leak or by_models.slowed):
        return _from_later_half(samples, opts, by_models, sawtooth)
    found = _unless_stored_up(sawtooth, by_models, opts)
    if by_troughs is None:
        return found
    # Very short ramps are uncorrelated noise, and if ramps differ, the troughs vary more than the
    # stretches between them.  In both cases the blocks are more precise.
    narrower = found.upper - found.lower < by_troughs.upper - by_troughs.lower
    return found if found.phi <= _FORGETS_AGAIN and narrower else by_troughs


def _without_load(samples: Samples) -> FloatArray:
    return samples.value if samples.load is None else without_load(samples.value, samples.load)


def _unless_stored_up(sawtooth: Sawtooth | None, found: Estimate, opts: Options) -> Estimate:
    """Clear the leak if a few ramps of a sawtooth could have stored up the growth."""
    if sawtooth is None or not found.leak:
        return found
    one_tooth = opts.collected and sawtooth.fall.size < 2
    if not one_tooth and (found.returns or _troughs_rise(sawtooth, found)):
        return found
    return replace(found, leak=False, reason="few-cycles")


def _troughs_rise(sawtooth: Sawtooth, found: Estimate) -> bool:
    """Whether the growth holds despite few ramps.

    It does if each trough is above the previous one by what the growth predicts, if a single fall
    freed little, or if nothing has fallen for longer than a ramp lasts.
    """
    if sawtooth.outgrown:
        return True
    if sawtooth.fall.size < 2:
        return not sawtooth.gives_back
    blocks = found.blocks
    pace = np.diff(sawtooth.trough) / np.diff(sawtooth.trough_s) * (blocks.end_s - blocks.start_s)
    return bool(np.all(pace >= _TROUGHS_KEEP * found.growth))


def _constant(blocks: Blocks) -> Estimate:
    flat = np.zeros(len(blocks))
    return Estimate(
        blocks,
        fitted=blocks.value,
        band=flat,
        model="flat",
        growth=0.0,
        lower=0.0,
        upper=0.0,
        leak=False,
        reason="",
        fade=(0.0, 0.0),
    )


def _from_models(
    samples: Samples, blocks: Blocks, opts: Options, sawtooth: Sawtooth | None
) -> Estimate:
    """Fit every plausible shape and combine them.

    A loss that is a random walk may be called a leak even if the shapes fit bends and steps to it.
    """
    dips = find_dips(blocks, sawtooth, opts.quantile)
    problem, works = _problem(samples, blocks, opts, dips)
    phi = choose_phi(problem, opts.max_steps)
    ranked = rank_models(problem, phi, opts.max_steps, _MOST_MODELS)
    near = [m for m in ranked if m.bic <= ranked[0].bic + _REPORT_WITHIN]
    wide = cautious_phi(phi, len(blocks))
    fits = [fit_model(problem, model, wide) for model in near]
    best = fits[0]
    growth, lower, upper = _united(fits, problem)
    work = best.model.candidate.work
    progress = blocks.x if work is None else works[work]
    level = without_steps(best, problem, dips)
    start = HALF if is_warm_by_middle(best, problem) else opts.pace_from
    pace = measure_pace(progress, level, problem.gaps, phi, start)
    all_agree = agreed(fits, phi, blocks, opts.question)
    # An interval that reaches the floor would contradict a leak.
    floor = opts.question.floor_of(best.model)
    least = max(floor, least_sure(best.model, opts.max_steps, phi) * growth)
    leak = (
        all_agree
        and lower > least
        and goes_on(pace, best, growth)
        and not stops_at_the_end(progress, without_beside(best, problem), problem.gaps)
    )
    slower = slowed(fits, problem, phi) if leak or phi >= _HARDLY_FORGETS else None
    leak = leak and slower is None
    found = Estimate(
        blocks,
        fitted=best.fitted,
        band=t_quantile(_TWO_SIDED, best.df) * best.fitted_se,
        model=best.model.label,
        growth=growth,
        lower=lower,
        upper=upper,
        leak=leak,
        reason="" if leak else reason(all_agree or slower is not None, best),
        fade=slower or (None if pace is None else (pace.third_quarter, pace.last_quarter)),
        slowed=slower is not None,
        phi=phi,
        p_value=chance(fits, opts.question),
        floor=floor,
        warms=still_warms(best, problem),
        returns=dips is not None
        and all(_returns(fit.model, dips, problem) for fit in deciding(fits)),
    )
    walk = None if leak or slower is not None else fit_random_walk(problem, best, phi)
    if walk is None or not (walk.plausible and walk.surely_grows(opts.floor, opts.alpha)):
        return found
    return _by_chance(found, walk, opts)


def _by_chance(found: Estimate, walk: RandomWalkFit, opts: Options) -> Estimate:
    """Return ``found`` as a leak: its bends and steps are what a random walk produces by chance."""
    lower, upper = walk.interval
    return replace(
        found,
        growth=walk.growth,
        lower=lower,
        upper=upper,
        leak=True,
        reason="",
        model=f"trend {'in time' if walk.work is None else 'with work done'}, random losses",
        fitted=walk.fitted,
        band=t_quantile(_TWO_SIDED, walk.df) * walk.fitted_se,
        floor=opts.floor,
        p_value=tail(walk.growth - opts.floor, walk.se, walk.df),
        returns=False,
    )


def _returns(model: Model, dips: Beside, problem: Problem) -> bool:
    """Whether the model has the dips but no steps; a sawtooth would need steps."""
    if model.steps:
        return False
    columns = problem.shapes.columns[:, list(model.candidate.columns)]
    return any(np.array_equal(dips.columns[0], column) for column in columns.T)


def _from_later_half(
    samples: Samples, opts: Options, whole: Estimate, sawtooth: Sawtooth | None
) -> Estimate:
    """Judge the later half alone, because over the whole run the noise is misfit of every shape.

    The shape of the first half then no longer matters, but a leak must also exceed the floor over
    the whole run.
    """
    from_s = 0.5 * (whole.blocks.start_s + whole.blocks.end_s)
    late = samples.t_s >= from_s
    if int(late.sum()) < MIN_SAMPLES:
        return whole
    part = Samples(
        samples.t_s[late],
        samples.value[late],
        [work[late] for work in samples.works],
        None if samples.load is None else samples.load[late],
    )
    blocks = _blocks_of(part, opts)
    if not np.ptp(blocks.value):
        return whole
    late_sawtooth = find_sawtooth(part.t_s, part.value)
    # The last two quarters of the run are the halves of this part: growth that decays with 1/t
    # slows down by a quarter from one to the other, but less than the tolerance within the last.
    fewer = replace(opts, floor=0.5 * opts.floor, line_floor=None, pace_from=0.0)
    half = _from_models(part, blocks, fewer, late_sawtooth)
    if half.phi > _FORGETS_AGAIN:
        return whole
    # A few falls may end ramps as long as the run, so check the whole run's falls as well.
    half = _unless_stored_up(sawtooth, _unless_stored_up(late_sawtooth, half, opts), opts)
    leak = half.leak and whole.lower > opts.floor
    return replace(half, leak=leak, reason="" if leak else half.reason or whole.reason)


def _united(fits: Sequence[ModelFit], problem: Problem) -> tuple[float, float, float]:
    """Return the best model's growth, and the union of the intervals of all models near it."""
    spans = [_growth(fit, problem) for fit in fits]
    growth = spans[0][0]
    least = _LEAST_WIDTH * abs(growth)
    lower = min(low for _, low, _ in spans)
    upper = max(high for _, _, high in spans)
    return growth, min(lower, growth - least), max(upper, growth + least)


def _problem(
    samples: Samples, blocks: Blocks, opts: Options, dips: Beside | None
) -> tuple[Problem, list[FloatArray]]:
    """Return the blocks with all shapes, and the progress of each work that differs from time."""
    works: list[FloatArray] = []
    for work in samples.works:
        scaled = _progress(samples.t_s, work, blocks)
        if scaled is not None and all(_differ(scaled, rival) for rival in (blocks.x, *works)):
            works.append(scaled)
    load = None if samples.load is None else block_load(samples.t_s, samples.load, blocks)
    beside = [] if load is None else [load]
    peak = None if samples.load is None else block_peak(samples.t_s, samples.load, blocks)
    if peak is not None:
        beside.append(Beside((peak,), 1))
    if dips is not None:
        beside.append(dips)
    gaps = np.diff(blocks.index)
    shapes = build_shapes(blocks.x, works, beside, opts.slowest)
    swing = find_swing(Problem(blocks.value, gaps, shapes))
    if swing is not None:
        shapes = build_shapes(blocks.x, works, [*beside, swing], opts.slowest)
    return Problem(blocks.value, gaps, shapes), works


def _progress(t_s: FloatArray, work: FloatArray, blocks: Blocks) -> FloatArray | None:
    """Return the share of work done at the blocks' times; None if there was no work."""
    done = float(work[-1] - work[0])
    if done <= 0:
        return None
    progress: FloatArray = np.interp(blocks.t_s, t_s, (work - work[0]) / done)
    return progress


def _differ(one: FloatArray, other: FloatArray) -> bool:
    return float(np.abs(one - other).max()) > _WORK_DIFFERS


def _growth(fit: ModelFit, problem: Problem) -> tuple[float, float, float]:
    """Return growth per window at the last quarter's rate, with its interval, without steps."""
    weights = np.zeros(fit.beta.size)
    columns = list(fit.model.candidate.columns)
    weights[1 : 1 + len(columns)] = problem.shapes.growth[columns]
    value = float(weights @ fit.beta)
    se = float(np.sqrt(max(float(weights @ fit.cov @ weights), 0.0)))
    half = t_quantile(_TWO_SIDED, fit.df) * se
    return value, value - half, value + half


def _from_troughs(
    samples: Samples, sawtooth: Sawtooth, blocks: Blocks, opts: Options
) -> Estimate | None:
    """Return the trend of the troughs; None if there are too few to fit."""
    t, y = usable_troughs(sawtooth, blocks.start_s, blocks.end_s)
    if t.size < MIN_TROUGHS:
        return None
    if t.size >= _TROUGHS_FOR_MODELS:
        # With enough troughs, fit them as a series of their own, with all shapes.  They may form a
        # sawtooth again, as when one collector waits for another.  Allow only one step per sixteen
        # points.
        fewer = min(opts.max_steps, t.size // _TROUGHS_FOR_MODELS)
        works = [np.interp(t, samples.t_s, work) for work in samples.works]
        troughs = Samples(t, y, works)
        opts = replace(opts, max_steps=fewer, quantile=COUNT_QUANTILE)
        return _estimate(troughs, _blocks_of(troughs, opts), opts)
    x = (t - blocks.start_s) / (blocks.end_s - blocks.start_s)
    slope, se, line = straight_line(x, y)
    se = float(np.hypot(se, sawtooth.jitter / np.sqrt(12.0 * np.sum((x - x.mean()) ** 2))))
    late = slice(t.size // 2 - 1, None)
    late_slope, late_se, _ = straight_line(x[late], y[late])
    df = t.size - 2
    half = max(t_quantile(_TWO_SIDED, df) * se, _LEAST_WIDTH * abs(slope))
    by_chance = tail(slope - opts.floor, se, df)
    above = by_chance < opts.alpha
    # With so few points no shapes are tried: the later half must show the growth by itself.
    late_doubt = t_quantile(0.95, max(x[late].size - 2, 1)) * late_se
    holds = late_slope > 0.6 * slope and late_slope - late_doubt > opts.floor
    leak = above and holds
    fitted = np.interp(blocks.x, x, line)
    return Estimate(
        blocks,
        fitted=fitted,
        band=np.full(len(blocks), half / 2),
        model=f"line through {t.size} troughs",
        growth=slope,
        lower=slope - half,
        upper=slope + half,
        leak=leak,
        reason="" if leak else ("still-filling" if above else "few-cycles"),
        fade=(slope, late_slope),
        floor=opts.floor,
        p_value=by_chance,
    )
