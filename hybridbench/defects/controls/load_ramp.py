"""Load that rises during the whole run: memory follows the requests in flight; nothing leaks."""

from __future__ import annotations

from hybridbench.defects.controls.side_work import control

DEFECT = control(
    "load-ramp",
    "load",
    symptom="The number of requests in flight rises, each with its features, and memory rises with "
    "it.",
    rate="none at equal load",
    overrides=(
        ("arrival.ramp.start", "0.15"),
        ("arrival.ramp.over", "5m"),
        ("prompts.payload", "1MiB"),
        # All requests have the same features: the prompt begins with their hash, so requests with
        # different features would share no prefix.
        ("prompts.payload_repeat", "1"),
        # The mean load is 0.575 of the profile's.
        ("assert_coverage.finishes", ">345/min"),
        # While the load is low nothing waits, and few states are evicted.
        ("assert_coverage.abort_queued", "5"),
        ("assert_coverage.evict_internal_state", "100"),
    ),
)
