"""Which counts of a defect belong to the traffic, and which explain losses found at rest."""

from __future__ import annotations

from dataclasses import replace

from hybridbench.defects.pr21404_mamba_adder_reject import DEFECT
from hybridbench.defects.truth import Truth
from hybridbench.worker.injected_counts import InjectedCounts
from tests.builders import make_engine


def test_counts_before_the_traffic_are_excluded_from_rates_but_kept_at_idle() -> None:
    defect = replace(DEFECT, truth=Truth())
    defect.truth.add("refusals", 37)
    injected = InjectedCounts(make_engine(), [defect])
    defect.truth.add("refusals", 20)
    injected.mark_steady()
    defect.truth.add("refusals", 100)
    defect.truth.add("slots_kept", 108)
    injected.mark_idle()

    message = injected.message()

    assert message is not None
    assert message.counts == {defect.slug: {"refusals": 120, "slots_kept": 108}}
    assert message.before_steady == {defect.slug: {"refusals": 20}}
    assert message.at_idle == {defect.slug: {"refusals": 157, "slots_kept": 108}}
