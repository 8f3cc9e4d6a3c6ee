"""Write the tables of runs on released-engines.md from the rows in the JSON file beside it.

    python -m tools.released_rows                    # the tables, from the file
    python -m tools.released_rows servers RUN...     # first add a row for each stored run

A table is the text between ``<!-- rows: NAME -->`` and ``<!-- end of rows -->``.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from hybridbench import load_run
from hybridbench.analysis.record import RunRecord
from hybridbench.records.finding import VerdictKind
from hybridbench.records.rates import full_rate_text

PAGE: Final = Path(__file__).parents[1] / "docs" / "explanation" / "released-engines.md"
_TABLE: Final = re.compile(r"(<!-- rows: (\S+) -->\n).*?(<!-- end of rows -->)", re.DOTALL)
_STRAY: Final = re.compile(r"instances\..+\.stray")
_MISSING: Final = re.compile(r"pool\..+\.residual")
# Options that only say where files are, not what was run.
_PLACES: Final = ("--targets", "--store", "--ui")
_COLUMNS: Final = {
    "release": "release",
    "traffic": "traffic",
    "finding": "verdict and finding",
    "rate": "rate (95 % interval)",
    "counts": "exact counts",
    "fixed_in": "fixed in",
    "minutes": "minutes",
    "date": "date",
}


class Row(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One run; an empty value was not recorded.

    Attributes:
        release: engine and release, as ``soak --target`` takes them.
        traffic: the profile, and the settings that differ from it.
        finding: the verdict and its first finding.
        rate: rate of that finding, with its interval.
        counts: exact counts.
        fixed_in: a later release that was run under the same traffic, and the counts there.
        minutes: recorded minutes.
        date: the day of the run.
        command: the command line without folders.
    """

    release: str
    traffic: str
    finding: str
    rate: str = ""
    counts: str = ""
    fixed_in: str = ""
    minutes: float | None = None
    date: str
    command: str = ""


def read(page: Path) -> dict[str, list[Row]]:
    """The rows of each table of ``page``."""
    return msgspec.json.decode(_file(page).read_bytes(), type=dict[str, list[Row]])


def write(page: Path, rows: Mapping[str, Sequence[Row]]) -> None:
    """Store ``rows``, and write the tables of ``page`` from them."""
    encoded = msgspec.json.encode(rows)
    _file(page).write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
    page.write_text(with_tables(page.read_text("utf-8"), rows), encoding="utf-8")


def with_tables(text: str, rows: Mapping[str, Sequence[Row]]) -> str:
    """Return ``text`` with each table replaced by that of ``rows``."""
    return _TABLE.sub(lambda found: found[1] + _table(rows[found[2]]) + found[3], text)


def row_of(run: Path) -> Row:
    """The row of the run that is stored in the directory ``run``."""
    stored = load_run(run)
    manifest, verdict = stored.manifest, stored.verdict
    options = _options(manifest.command)
    traffic = " ".join((manifest.profile.name, *_settings(options)))
    found = verdict.findings[0] if verdict.findings else None
    # The kinds of all requests in flight at a crash are in the report.
    said = verdict.headline if found is None else re.sub(r"(in flight): .*", r"\1", found.title)
    if found is not None and verdict.kind is VerdictKind.CORRUPT:
        said = f"{said}: {found.cause}"
    day = datetime.fromtimestamp(manifest.started_wall_s or 0.0, UTC)
    return Row(
        release=manifest.prepared.name if manifest.prepared else manifest.model.name,
        traffic=f"`{traffic}`",
        finding=f"{verdict.kind}: {said}",
        rate=full_rate_text(found.rates[0]) if found and found.rates else "",
        counts=_counts(stored.record),
        minutes=round(stored.record.last_moment_s / 60.0, 1),
        date=day.date().isoformat(),
        command=shlex.join(options),
    )


def _counts(record: RunRecord) -> str:
    """Return the exact counts of driven classes; "" for a server."""
    strays = [one.value for name, one in record.series.items() if _STRAY.fullmatch(name)]
    missing = [one.value for name, one in record.series.items() if _MISSING.fullmatch(name)]
    if not strays:
        return ""
    over = int(np.any(np.array(strays) > 0.0, axis=0).sum())
    found = f"objects beyond those held in {over} of" if over else "zero in"
    most = max((float(value.max()) for value in missing), default=0.0)
    slots = f"at most {most:,.0f} slots missing" if most else "no slot missing"
    return f"{found} {len(strays[0])} heap scans, {slots}"


def _options(command: Sequence[str]) -> list[str]:
    """Return the words of ``command`` without the options that name folders."""
    words, kept = iter(command), list[str]()
    for word in words:
        if word in _PLACES:
            next(words, None)
        else:
            kept.append(word)
    return kept


def _settings(options: Sequence[str]) -> list[str]:
    return [value for option, value in pairwise(options) if option in ("--set", "--model", "--api")]


def _table(rows: Sequence[Row]) -> str:
    texts = [{name: _cell(getattr(row, name)) for name in _COLUMNS} for row in rows]
    used = [name for name in _COLUMNS if any(text[name] for text in texts)]
    head = [f"| {' | '.join(_COLUMNS[name] for name in used)} |", "|---" * len(used) + "|"]
    body = [f"| {' | '.join(text[name] for name in used)} |" for text in texts]
    return "".join(f"{line}\n" for line in (*head, *body))


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return value.replace("|", "\\|") if isinstance(value, str) else f"{value:g}"


def _file(page: Path) -> Path:
    return page.with_suffix(".json")


def main() -> None:
    """Add rows for stored runs, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("table", nargs="?", default="", help="The table to add rows to.")
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="A run directory.")
    arguments = parser.parse_args()
    rows = read(PAGE)
    for run in arguments.runs:
        rows[arguments.table].append(row_of(run))
    write(PAGE, rows)


if __name__ == "__main__":
    main()
