"""Suggest defects for a name that is unknown."""

from __future__ import annotations

from collections.abc import Mapping

from hybridbench.foundation.errors import full_stop, nearest


def nearest_defect(name: str, sources: Mapping[str, str]) -> str:
    """Return a sentence that suggests defects for an unknown ``name``.

    Args:
        name: a misspelt slug, or the number of an upstream issue: sglang#25770, #25770, 25770.
        sources: where the defect of each slug was reported.
    """
    where, _, number = name.rpartition("#")
    reported = [
        slug
        for slug, source in sources.items()
        if source == name or (not where and source.endswith(f"#{number}"))
    ]
    if reported:
        return f"did you mean {' or '.join(reported)}?"
    return full_stop(
        nearest(name.partition("@")[0], sources, "`hybridbench list defects` lists them")
    )
