"""``defects-as-of:``, and how names on the command line expand to defects."""

from __future__ import annotations

import pytest

from hybridbench.defects.catalog import DEFECTS
from hybridbench.defects.releases import defects_of, expand
from hybridbench.foundation.errors import UsageError


def slugs(release: str) -> set[str]:
    return {defect.slug for defect in defects_of(release)}


def test_a_release_has_the_defects_between_their_first_and_last_version() -> None:
    assert "lru-reference-cycle" in slugs("sglang-0.5.9")
    assert "mamba-adder-reject" in slugs("sglang-0.5.9")
    assert "lru-reference-cycle" in slugs("sglang-0.5.12.post1")
    assert "mamba-adder-reject" not in slugs("sglang-0.5.10")


def test_a_release_after_the_cure_has_none_and_says_what_is_known() -> None:
    with pytest.raises(
        UsageError, match=r"sglang-0\.9: no defect .*; choose one of .*sglang-0\.5\.9"
    ):
        defects_of("sglang-0.9")


@pytest.mark.parametrize("release", ["sglang", "sglang-new", "0.5.10-sglang"])
def test_what_is_no_release_is_refused_with_an_example(release: str) -> None:
    with pytest.raises(UsageError, match=r"write PROJECT-VERSION, for example sglang-0\.5\.10"):
        defects_of(release)


def test_names_are_expanded_in_order_and_each_once() -> None:
    both = expand(["mamba-adder-reject", "defects-as-of:sglang-0.5.9"])

    assert both[0].slug == "mamba-adder-reject"
    assert len(both) == len({defect.slug for defect in both})
    assert {"mamba-adder-reject", "lru-reference-cycle"} <= {defect.slug for defect in both}


def test_every_version_span_is_in_order_and_of_a_named_project() -> None:
    from packaging.version import Version

    for defect in DEFECTS:
        for first, last in defect.versions:
            assert Version(first) <= Version(last), defect.slug
            assert "#" in defect.source
