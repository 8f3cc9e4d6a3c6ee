"""Small profiles for tests, written as a user would."""

from __future__ import annotations

from hybridbench.workload.profile import Profile

BASE = """\
name: test
arrival: {process: closed, concurrency: 8}
promise: [{rss: 2GiB/h, collectible: 1GiB/h}]
"""

CHURN = """\
name: churn
seed: 11
pools: {kv_tokens: 4096, mamba_slots: 32, max_context_len: 512}
engine: {max_running_requests: 12, chunked_prefill_size: 64}
arrival: {process: closed, concurrency: 16}
prompts:
  families: 5
  system_tokens: [16, 40]
  user_tokens: [4, 24]
  reuse: zipf(1.2)
  long: 0.05
  long_tokens: [200, 300]
  warm: 0.1
conversations: {turns: [1, 6], open: 24, branch: 0.2, edit: 0.2}
output: {tokens: [2, 12]}
sampling: {stop: 0.1}
aborts: {queued: 0.05, prefill: 0.05, decode: 0.05, disconnect: 0.03}
bad_input: {overlong: 0.03, truncate: 0.02, duplicate_ids: 0.03}
promise: [{rss: 2GiB/h, collectible: 1GiB/h}]
"""


def base(extra: str = "") -> Profile:
    return Profile.from_yaml_text(BASE + extra, "test.yaml")


def churn(**overrides: str) -> Profile:
    profile = Profile.from_yaml_text(CHURN, "churn.yaml")
    return profile.with_overrides({key.replace("__", "."): v for key, v in overrides.items()})
