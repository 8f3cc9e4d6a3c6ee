"""A bounded prompt cache that fills for minutes: linear until it is full (llama.cpp#25740).

Upstream it was reported as a leak of 0.15 MB a token; it was the cache, 8 GiB by default.
"""

from __future__ import annotations

from hybridbench.defects.controls.side_work import control

# 300,000 tokens are a few minutes of this traffic.  No method is replaced.
DEFECT = control(
    "cache-fill",
    "llama.cpp#25740",
    symptom="The prefix cache grows until its pool is full, minutes into the run, and then stays "
    "level.",
    rate="growth with each new cached token until the pool is full, then none",
    overrides=(("pools.kv_tokens", "300000"), ("pools.mamba_slots", "2048")),
)
