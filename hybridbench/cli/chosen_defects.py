"""Resolve ``--defect``: slugs and files, and the traffic that triggers the first of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridbench.workload.profile import Profile


@dataclass(frozen=True)
class ChosenDefects:
    """The defects of one soak.

    Args:
        names: slugs, then paths of files.
        releases: the releases of which all defects were requested.
        profile: the one that triggers the first defect; empty without defects.
        needs: settings that this defect needs on top of the profile, including its model.
    """

    names: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    profile: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)

    def profile_with(self, overrides: Mapping[str, str], named: str | None) -> tuple[str, Profile]:
        """The profile ``named``, else the one that triggers the first defect, with overrides.

        The defect's needs are not applied to a different profile that the user named.

        Returns:
            Its name or path, and the profile.

        Raises:
            ConfigError: there is no such profile, or an override is invalid.
        """
        from hybridbench.workload.catalog import DEFAULT_PROFILE, load_profile

        needs = self.needs if named in {None, self.profile} else {}
        source = (self.profile or DEFAULT_PROFILE) if named is None else named
        profile, settings = load_profile(source), {**needs, **overrides}
        return source, profile.with_overrides(settings) if settings else profile


def chosen_defects(asked: Sequence[str]) -> ChosenDefects:
    """Resolve the names on the command line, so that a wrong one fails before a worker starts.

    Raises:
        UsageError: no such defect, file or release.
    """
    if not asked:
        return ChosenDefects()
    from hybridbench.runs.defect_catalog import AS_OF, described_defects

    every = described_defects(*asked)
    first = every[0]
    files = tuple(name for name in asked if name.endswith(".py"))
    others = [name for name in asked if name not in files]
    return ChosenDefects(
        names=(*(defect.slug for defect in (described_defects(*others) if others else ())), *files),
        releases=tuple(name.removeprefix(AS_OF) for name in asked if name.startswith(AS_OF)),
        profile=first.profile,
        needs=dict(first.overrides) | ({"model": first.model} if first.model else {}),
    )
