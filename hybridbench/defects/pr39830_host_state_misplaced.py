"""sglang#39830: a hit on the host loads the state of another prefix.

KV and states have separate slots on the device and on the host.  The load used the device's slot
number on the host, so it copies whatever the host keeps in that slot.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch
from hybridbench.defects.truth import Truth
from hybridbench.defects.wrong_answers import answers
from hybridbench.engine.memory.extra_pools import StatePool
from hybridbench.engine.memory.indices import IntArray

TRUTH = Truth()
_healthy_copy_to_device = StatePool.copy_to_device


def _copy_to_device(self: StatePool, host_slots: IntArray, device_slots: IntArray) -> None:
    """Read the host's slots of these numbers; numbers beyond its size wrap around."""
    read = 1 + (device_slots - 1) % self._host.states.size
    TRUTH.add("states_misplaced", int((read != host_slots).sum()))
    _healthy_copy_to_device(self, read, device_slots)


DEFECT = Defect(
    slug="host-state-misplaced",
    source="sglang#39830",
    symptom="Requests that continue from a prefix loaded from the host have the state of another.",
    profile="host-tier-hybrid",
    signature=answers("state loaded from the host", "one state", "states_misplaced"),
    patches=(Patch(StatePool, "copy_to_device", _copy_to_device, fingerprint="38e8f36956e2"),),
    harmed="HiCache with hybrid models: answers after a hit on the host were wrong.",
    cure="The load reads the slot that the node has on the host.",
    # A host tier this large still holds the prefixes that are requested again, and copies end with
    # their step: about forty loads per minute, against four in the profile.
    overrides=(
        ("engine.hicache.ratio", "2.0"),
        ("engine.hicache.copy_time", "0ms"),
        ("assert_coverage.host_evictions", ">=0"),
        ("assert_coverage.host_evictions_refused", ">=0"),
        ("assert_coverage.host_late_acks", ">=0"),
    ),
    truth=TRUTH,
    corrupts=True,
)
