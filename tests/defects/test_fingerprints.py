"""Each defect still replaces the methods that it was written against."""

from __future__ import annotations

import sys

import pytest

from hybridbench.defects.catalog import DEFECTS, PLANTED
from hybridbench.defects.defect import Defect, fingerprint_of
from hybridbench.defects.inject import healthy_method
from hybridbench.workload.catalog import list_profiles

PINNED_PYTHON = (3, 11)


@pytest.mark.parametrize("defect", [*DEFECTS, *PLANTED], ids=lambda d: d.slug)
@pytest.mark.skipif(sys.version_info[:2] != PINNED_PYTHON, reason="byte code differs by version")
def test_the_healthy_methods_are_unchanged(defect: Defect) -> None:
    for patch in defect.patches:
        # After a change, check that the defect still works as described, then store the new value.
        assert fingerprint_of(healthy_method(patch)) == patch.fingerprint, patch.method


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.slug)
def test_a_defect_says_where_it_is_from_and_how_to_reach_it(defect: Defect) -> None:
    assert "#" in defect.source
    assert defect.symptom
    assert defect.patches
    assert defect.profile in list_profiles()


def test_slugs_are_unique() -> None:
    slugs = [defect.slug for defect in (*DEFECTS, *PLANTED)]

    assert len(set(slugs)) == len(slugs)
