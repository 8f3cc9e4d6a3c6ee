"""The rows of the self-test: what runs, for how long, and the expected outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hybridbench.defects.defect import Defect, FoundBy, Role, Signature
from hybridbench.foundation.errors import UsageError

# Remaining undecided after the extension is wrong too: a bench that never says CLEAN is useless.
_TWIN_VERDICTS = ("CLEAN",)
# Half a minute cannot bound memory; the summary counts the twins that stay undecided.
_SHORT_TWIN_VERDICTS = ("CLEAN", "INCONCLUSIVE")
_QUICK_TWIN_S = 30.0
_EXTEND_LEAST_S = 600.0  # also the default of `soak`
_SMALL_HEAP = 0
_QUICK_BALLAST = 20_000  # creating a million objects at boot would take as long as the run


class Expect(StrEnum):
    """The purpose of a row."""

    CAUGHT = "defect"
    TWIN = "twin"  # the same traffic and seed without the defect
    SILENT = "control"


@dataclass(frozen=True)
class Row:
    """One soak, or comparison, with its expected outcome and a truth to compare findings with.

    ``defect`` is None for a twin; without a ``model`` or with ``ballast`` None the profile's is
    used.  ``twin_of`` is the slug of the defect whose settings a twin shares, if any.
    """

    expect: Expect
    profile: str
    signature: Signature
    duration_s: float
    model: str = ""
    defect: Defect | None = None
    overrides: tuple[tuple[str, str], ...] = ()
    gc: str = "default"
    ballast: int | None = None
    twin_of: str = ""
    # False: the allocators refuse nothing, so that their error messages cannot help detection.
    check_owners: bool = True
    # None: as long again, but at least ten minutes.  A soak that finds its defect is not extended.
    extend_s: float | None = None

    def __post_init__(self) -> None:
        said = self.signature
        comparable = said.per or said.counted or said.says
        if self.expect is Expect.CAUGHT and not (said.harm and comparable):
            raise ValueError(
                f"{self.name}: the signature must name what the defect's truth counts (harm) and "
                "what that is compared with (per, with drivers, counted, or says)"
            )

    @property
    def most_extend_s(self) -> float:
        """How long the soak may be extended while it is undecided."""
        return max(self.duration_s, _EXTEND_LEAST_S) if self.extend_s is None else self.extend_s

    @property
    def name(self) -> str:
        """The row's name in tables; unique within a matrix."""
        settings = f" of {self.twin_of}" if self.twin_of else ""
        twin = f"{self.profile} twin{settings}"
        parts = [self.defect.slug if self.defect is not None else twin]
        if self.gc != "default":
            parts.append("frozen")
        if self.ballast == _SMALL_HEAP:
            parts.append("small heap")
        if not self.check_owners:
            parts.append("unchecked")
        return ", ".join(parts)

    @property
    def slug(self) -> str:
        """``name`` as a directory name."""
        return "".join(
            c if c.isalnum() or c in "-=.+" else "-" for c in self.name.replace(", ", "+")
        )


def quick_matrix(defects: Sequence[Defect]) -> list[Row]:
    """Return the rows of the quick self-test.

    They are the defects that half a minute reveals, one healthy twin for each of their profiles,
    and one defect that only a memory trend reveals, with the control that does the same work.
    Nothing is extended: extending fifteen twins until their memory growth is decided would take
    hours, and the other rows need no memory trend.  The summary counts the twins that stay
    undecided.
    """
    chosen = [d for d in defects if d.role is Role.DEFECT and d.signature.quick_s]
    trends = [d for d in defects if d.quick]
    working_alike = {d.healthy_twin for d in trends}
    rows = [
        replace(
            _row(defect, ballast=_QUICK_BALLAST),
            duration_s=min(defect.signature.duration_s, defect.signature.quick_s),
            extend_s=0.0,
        )
        for defect in chosen
    ]
    first = {row.profile: row for row in reversed(rows)}
    twins = _twins(first.values(), _SHORT_TWIN_VERDICTS, _QUICK_TWIN_S, extend_s=0.0)
    trends += [d for d in defects if d.slug in working_alike]
    return rows + twins + [replace(_row(d, ballast=_QUICK_BALLAST), extend_s=0.0) for d in trends]


def full_matrix(defects: Sequence[Defect]) -> list[Row]:
    """Return rows for every defect, twin and control.

    A defect that depends on the collector or the heap has a row for each setting.  Every defect has
    a row in which the allocators check owners and one in which they do not.
    """
    rows: list[Row] = []
    for defect in defects:
        if defect.role is Role.CONTROL:
            rows.append(_row(defect))
        elif _depends_on_the_heap(defect) and not defect.part_of:
            rows += [_row(defect, *setting) for setting in _SETTINGS]
        else:
            # The settings do not affect these mechanisms: two opposite combinations suffice.
            rows += [_row(defect), _row(defect, "freeze-after-warmup", _SMALL_HEAP, False)]
            rows += [
                _row(replace(defect, slug=f"{defect.slug}@{rate}")) for rate in defect.rates[:-1]
            ]
    return rows + _twins(rows, _TWIN_VERDICTS)


def only(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the rows of these defects, controls or profiles.

    Raises:
        UsageError: no row has such a name.
    """
    known = {name for row in rows for name in _names(row)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"{unknown[0]}: no row of this matrix; there are {', '.join(sorted(known))}.",
            option="--only",
        )
    return [row for row in rows if set(_names(row)) & set(names)]


# GC mode, objects on the heap, and whether allocators check owners.
_SETTINGS: tuple[tuple[str, int | None, bool], ...] = (
    ("default", None, True),
    ("default", _SMALL_HEAP, True),
    ("freeze-after-warmup", None, True),
    ("freeze-after-warmup", _SMALL_HEAP, False),
)


def _names(row: Row) -> tuple[str, ...]:
    if row.defect is not None:
        return (row.defect.slug.partition("@")[0],)
    return (row.profile,)


def _depends_on_the_heap(defect: Defect) -> bool:
    return any(kind.startswith("instances") for kind in defect.signature.kinds)


def _row(
    defect: Defect, gc: str = "default", ballast: int | None = None, check_owners: bool = True
) -> Row:
    """Return a row for a defect that must be found, or a control that must stay silent."""
    return Row(
        expect=Expect.SILENT if defect.role is Role.CONTROL else Expect.CAUGHT,
        profile=defect.profile,
        signature=defect.signature,
        duration_s=defect.signature.duration_s,
        model=defect.model,
        defect=defect,
        overrides=defect.overrides,
        gc=gc,
        ballast=ballast,
        # Answers are checked when the traffic has ended: more traffic would decide nothing.
        extend_s=0.0 if "CORRUPT" in defect.signature.verdicts else None,
        check_owners=check_owners,
    )


def _twins(
    rows: Iterable[Row],
    verdicts: tuple[str, ...],
    most_s: float | None = None,
    extend_s: float | None = None,
) -> list[Row]:
    """Return a twin of each row with a defect, without it; of identical twins, only the longest.

    A comparison needs no twin: its first version is the engine without the defect.
    """
    twins: dict[tuple[object, ...], Row] = {}
    for row in rows:
        if row.expect is not Expect.CAUGHT or row.signature.found_by is FoundBy.COMPARE:
            continue
        duration_s = row.duration_s if most_s is None else min(row.duration_s, most_s)
        key = (row.profile, row.model, row.overrides, row.gc, row.ballast, row.check_owners)
        known = twins.get(key)
        if known is None or known.duration_s < duration_s:
            twins[key] = Row(
                expect=Expect.TWIN,
                profile=row.profile,
                signature=Signature(verdicts, (), "", "none", "none"),
                duration_s=duration_s,
                model=row.model,
                overrides=row.overrides,
                gc=row.gc,
                ballast=row.ballast,
                extend_s=extend_s,
                check_owners=row.check_owners,
                twin_of=row.defect.slug if row.overrides and row.defect is not None else "",
            )
    return list(twins.values())
