"""Runs that may be compared with each other, and where a quantity of theirs changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hybridbench.analysis.change_points import Change, change_points
from hybridbench.history.points import QUANTITIES, Point, Tracked


@dataclass(frozen=True)
class Trend:
    """One quantity over the runs that have it, oldest first."""

    quantity: Tracked
    points: tuple[Point, ...]
    changes: tuple[Change, ...]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(point.values[self.quantity.name].value for point in self.points)

    def is_worse(self, change: Change) -> bool:
        """Whether the change was for the worse."""
        return (change.after > change.before) is self.quantity.higher_is_worse


@dataclass(frozen=True)
class Series:
    """Runs of one model under one profile on machines of one class.

    ``differs_in`` are the facts in which it differs from others of the same model and profile.
    """

    model: str
    profile: str
    points: tuple[Point, ...]
    trends: tuple[Trend, ...]
    differs_in: Mapping[str, str]


def series_of(points: Iterable[Point], quantities: Sequence[Tracked] = QUANTITIES) -> list[Series]:
    """All series, those with the newest run first.

    Runs share one only if all that decides what they measure agrees: settings of the profile,
    pools, collector and malloc mode, processor, cores, memory and kernel.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Point]] = defaultdict(list)
    for point in points:
        key = (
            ("model", point.model),
            ("profile.name", point.profile),
            *sorted(point.facts.items()),
        )
        groups[key].append(point)
    found = [_series(group, list(groups.values()), quantities) for group in groups.values()]
    return sorted(found, key=lambda series: series.points[-1].started_wall_s, reverse=True)


def _series(
    group: Sequence[Point], groups: Sequence[Sequence[Point]], quantities: Sequence[Tracked]
) -> Series:
    first = group[0]
    others = [
        other[0].facts
        for other in groups
        if (other[0].model, other[0].profile) == (first.model, first.profile)
    ]
    names = sorted({name for facts in others for name in facts})
    apart = {
        name: first.facts.get(name, "absent")
        for name in names
        if len({facts.get(name) for facts in others}) > 1
    }
    trends = [_trend(group, quantity) for quantity in quantities]
    return Series(
        first.model,
        first.profile,
        tuple(group),
        tuple(trend for trend in trends if trend.points),
        apart,
    )


def _trend(group: Sequence[Point], quantity: Tracked) -> Trend:
    having = tuple(point for point in group if quantity.name in point.values and not point.invalid)
    value = [point.values[quantity.name].value for point in having]
    middle = sorted(abs(one) for one in value)[len(value) // 2] if value else 0.0
    least = max(quantity.least, quantity.least_share * middle)
    return Trend(quantity, having, tuple(change_points(value, least)))
