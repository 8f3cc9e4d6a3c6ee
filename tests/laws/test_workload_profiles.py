"""A valid profile is read back unchanged after writing; an invalid one gives a one-line error."""

from __future__ import annotations

import json

import yaml
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.foundation.errors import ConfigError
from hybridbench.workload.profile import Profile

DURATIONS = st.one_of(
    st.integers(1, 10**6),
    st.floats(0.001, 1e6),
    st.builds("{}h{}m".format, st.integers(0, 99), st.integers(1, 59)),
    st.builds("{:.3f}s".format, st.floats(0.001, 1e4)),
)
RANGES = st.tuples(st.integers(1, 50), st.integers(0, 50)).map(lambda r: [r[0], r[0] + r[1]])
SHARES = st.floats(0, 0.25)
RATES = st.builds(
    "{}{}/{}".format,
    st.integers(1, 999),
    st.sampled_from(["MiB", "GB", "kB", "B"]),
    st.sampled_from(["h", "min", "s"]),
)
FLOORS = st.one_of(
    st.integers(0, 10**6),
    st.builds(">{}/min".format, st.integers(0, 999)),
    st.builds(">={}".format, st.integers(0, 999)),
    st.fixed_dictionaries({"min": st.integers(0, 99), "per_minute": st.floats(0, 1e6)}),
)
BURSTS = st.fixed_dictionaries(
    {"every": st.floats(10, 20), "length": st.floats(1, 9), "factor": st.floats(1, 9)}
)
ARRIVALS = st.one_of(
    st.fixed_dictionaries(
        {"process": st.just("closed"), "concurrency": st.integers(1, 99)},
        optional={"bursts": BURSTS},
    ),
    st.fixed_dictionaries(
        {"process": st.just("poisson"), "rate": st.one_of(st.integers(1, 99), st.just("90/min"))},
        optional={"bursts": BURSTS},
    ),
)
LIMITS = st.lists(
    st.fixed_dictionaries({"rss": RATES, "collectible": RATES}), min_size=1, max_size=3
).map(lambda entries: [{"from": f"{i}h", **entry} for i, entry in enumerate(entries)])
PROFILES = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True),
        "arrival": ARRIVALS,
        "promise": LIMITS,
    },
    optional={
        "description": st.text(st.characters(codec="ascii", min_codepoint=32), max_size=20),
        "seed": st.integers(0, 2**62),
        "duration": DURATIONS,
        "checkpoint": st.fixed_dictionaries({"every": st.one_of(st.just("auto"), DURATIONS)}),
        "pools": st.fixed_dictionaries({"mamba_slots": st.integers(2, 999)}),
        "prompts": st.fixed_dictionaries(
            {"user_tokens": RANGES, "reuse": st.sampled_from(["uniform", "zipf(1.25)", "zipf(2)"])}
        ),
        "output": st.fixed_dictionaries({"tokens": RANGES}),
        "aborts": st.fixed_dictionaries({"queued": SHARES, "decode": SHARES, "prefill": SHARES}),
        "assert_coverage": st.dictionaries(st.sampled_from(["tombstones", "retracts"]), FLOORS),
        "gc": st.sampled_from([{"mode": "freeze-after-warmup"}, {"thresholds": [700, 10, 10]}]),
    },
)


@given(PROFILES)
def test_a_profile_survives_its_own_resolved_form_as_json_and_as_yaml(
    written: dict[str, object],
) -> None:
    profile = Profile.from_yaml_text(yaml.safe_dump(written, sort_keys=False), "f.yaml")
    resolved = profile.resolved()

    assert Profile.from_resolved(json.loads(json.dumps(resolved, allow_nan=False))) == profile
    assert Profile.from_yaml_text(yaml.safe_dump(resolved), "again.yaml") == profile
    assert profile.with_overrides({}) == profile


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**9), st.floats(), st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
TOP_KEYS = sorted(Profile.__dataclass_fields__)


@given(PROFILES, st.sampled_from(TOP_KEYS), VALUES)
def test_whatever_stands_in_a_key_it_is_taken_or_refused_in_one_sentence(
    written: dict[str, object], key: str, value: object
) -> None:
    text = yaml.safe_dump({**written, key.removesuffix("_s"): value}, sort_keys=False)

    try:
        Profile.from_yaml_text(text, "f.yaml")
    except ConfigError as error:
        message = str(error)
        assert message.startswith("f.yaml")
        assert "\n" not in message
        assert message.endswith((".", "?"))
