"""Names of series: a metric, and the labels that distinguish its series.

The canonical form is Prometheus': ``rss_anon_swap_bytes{role="EngineCore"}``, with the labels
sorted by key.  A series without labels belongs to the run, or to its only process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# The label that distinguishes the processes of a run.
ROLE: Final = "role"

_ESCAPES: Final = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
_UNESCAPES: Final = {escape: char for char, escape in _ESCAPES.items()}
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')


def of_process(role: str, host: str, rank: str) -> dict[str, str]:
    """The labels of one process's series."""
    return {ROLE: role, "host": host, "rank": rank}


def labelled(metric: str, labels: Mapping[str, str]) -> str:
    """The canonical name of the series of ``metric`` with ``labels``; empty values are omitted."""
    pairs = [f'{key}="{escaped(labels[key])}"' for key in sorted(labels) if labels[key]]
    return f"{metric}{{{','.join(pairs)}}}" if pairs else metric


def unlabelled(series: str) -> str:
    """The metric of ``series``."""
    return series.partition("{")[0].strip()


def labels_of(series: str) -> dict[str, str]:
    """Parse the labels of ``series``, in any order and with optional spaces.

    Raises:
        ValueError: the text in its braces is not a list of labels.
    """
    _, brace, rest = series.strip().partition("{")
    found: dict[str, str] = {}
    if not brace:
        return found
    inside, closing, after = rest.rpartition("}")
    at = 0
    while match := _LABEL.match(inside, at):
        found[match[1]] = re.sub(
            r"\\.", lambda escape: _UNESCAPES.get(escape[0], escape[0]), match[2]
        )
        at = match.end()
        if at == len(inside):
            break
    if not closing or after.strip() or inside[at:].strip():
        raise ValueError(f'{series!r} has no labels in its braces; write name{{key="value"}}')
    return found


def whose(series: str) -> str:
    """The owner of ``series`` in words, from its labels; empty without labels."""
    labels = labels_of(series)
    role = labels.pop(ROLE, "")
    others = [f"{key} {value}" for key, value in labels.items()]
    return ", ".join([role, *others] if role else others)


def escaped(value: str) -> str:
    """The value of a label as it stands between quotes."""
    return "".join(_ESCAPES.get(char, char) for char in value)
