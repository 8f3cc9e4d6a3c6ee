from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from hybridbench.foundation.errors import ConfigError
from hybridbench.workload.actions import Malformed
from hybridbench.workload.catalog import list_profiles, profiles_dir
from hybridbench.workload.consistency import max_prompt_tokens
from hybridbench.workload.fields import TokenRange
from hybridbench.workload.profile import Profile, profile_json_schema
from hybridbench.workload.validation import KeyFaultError
from tests.unit.workload.profiles import BASE, base, churn

# BASE has three lines, so the text under test begins on line 4.
FAULTS = {
    "unknown key at the top": ("pols: {kv_tokens: 3}", "f.yaml:4 pols unknown_key"),
    "unknown key in a group": (
        "pools:\n  kv_tokens: 4096\n  mamba_slotz: 3",
        "f.yaml:6 pools.mamba_slotz unknown_key",
    ),
    "a python name is no key": (
        "checkpoint: {every_s: 5m}",
        "f.yaml:4 checkpoint.every_s unknown_key",
    ),
    "a threshold on nothing": (
        "thresholds:\n  - rsss.slope<1MiB/h",
        "f.yaml:5 thresholds.0 malformed",
    ),
    "a threshold that is a number": ("thresholds: [3]", "f.yaml:4 thresholds.0 malformed"),
    "a threshold for two versions": (
        "thresholds: [throughput.ratio>0.97]",
        "f.yaml:4 thresholds.0 malformed",
    ),
    "nothing near": ("output: {zzz: 1}", "f.yaml:4 output.zzz unknown_key"),
    "wrong unit of a duration": ("duration: 5 minutes", "f.yaml:4 duration malformed"),
    "not a number of seconds": ("duration: .nan", "f.yaml:4 duration malformed"),
    "bytes where tokens are counted": (
        "pools:\n  kv_tokens: 8MiB",
        "f.yaml:5 pools.kv_tokens int_type",
    ),
    "a yes where a number belongs": (
        "pools: {mamba_slots: yes}",
        "f.yaml:4 pools.mamba_slots int_type",
    ),
    "a scalar where keys belong": ("pools: 5", "f.yaml:4 pools dataclass_type"),
    "zero requests": (
        "engine: {max_running_requests: 0}",
        "f.yaml:4 engine.max_running_requests greater_than_equal",
    ),
    "an unknown choice": ("gc: {mode: frozen}", "f.yaml:4 gc.mode literal_error"),
    "two thresholds": ("gc: {thresholds: [700, 10]}", "f.yaml:4 gc.thresholds.2 missing"),
    "a range that runs backwards": ("output: {tokens: [5, 1]}", "f.yaml:4 output.tokens malformed"),
    "no range at all": ("output: {tokens: [5, a]}", "f.yaml:4 output.tokens malformed"),
    "an empty output": ("output: {tokens: [0, 4]}", "f.yaml:4 output.tokens malformed"),
    "a bare exponent": ("prompts: {reuse: 1.1}", "f.yaml:4 prompts.reuse malformed"),
    "a share above one": ("aborts: {decode: 5}", "f.yaml:4 aborts.decode less_than_equal"),
    "shares above one together": ("aborts: {queued: 0.9, decode: 0.3}", "f.yaml:4 aborts conflict"),
    "priorities above one together": (
        "engine: {enable_priority_scheduling: true}\n"
        "priorities: [{value: 1, share: 0.6}, {value: 2, share: 0.5}]",
        "f.yaml:5 priorities conflict",
    ),
    "priorities that nobody looks at": (
        "priorities: [{value: 1, share: 0.6}]",
        "f.yaml:4 priorities conflict",
    ),
    "a pause without an end": (
        "controls: {pause_every: 5s, pause_for: 5s}",
        "f.yaml:4 controls.pause_for conflict",
    ),
    "a waiting time of nothing": (
        "engine: {req_waiting_timeout: 0s}",
        "f.yaml:4 engine.req_waiting_timeout greater_than",
    ),
    "too small a KV pool": (
        "pools: {kv_tokens: 512, max_context_len: 1096}\n"
        "prompts: {system_tokens: 900, user_tokens: 100}\noutput: {tokens: 96}",
        "f.yaml:4 pools.kv_tokens conflict",
    ),
    "too short a context": (
        "prompts: {system_tokens: 900, user_tokens: 100}\npools: {max_context_len: 1000}",
        "f.yaml:5 pools.max_context_len conflict",
    ),
    "one state slot": ("pools: {mamba_slots: 1}", "f.yaml:4 pools.mamba_slots conflict"),
    "no slot for a saved state": (
        "pools: {mamba_slots: 2}\nengine: {mamba_scheduler_strategy: extra_buffer}",
        "f.yaml:4 pools.mamba_slots conflict",
    ),
    "a copy at every token": (
        "engine: {mamba_scheduler_strategy: extra_buffer, mamba_track_interval: 1}",
        "f.yaml:4 engine.mamba_track_interval greater_than_equal",
    ),
    "a state inside a page": (
        "pools: {page_size: 16}\n"
        "engine: {mamba_scheduler_strategy: extra_buffer, mamba_track_interval: 40}",
        "f.yaml:5 engine.mamba_track_interval conflict",
    ),
    "a strategy nobody knows": (
        "engine: {mamba_scheduler_strategy: extra}",
        "f.yaml:4 engine.mamba_scheduler_strategy literal_error",
    ),
    "a torn page": (
        "pools: {kv_tokens: 1000, page_size: 16}\nengine: {chunked_prefill_size: 64}",
        "f.yaml:4 pools.kv_tokens conflict",
    ),
    "a chunk across pages": (
        "pools: {page_size: 64}\nengine:\n  chunked_prefill_size: 100",
        "f.yaml:6 engine.chunked_prefill_size conflict",
    ),
    "a chain without a guess": (
        "engine:\n  speculative_num_draft_tokens: 1",
        "f.yaml:5 engine.speculative_num_draft_tokens greater_than_equal",
    ),
    "an unknown counter": (
        "assert_coverage: {tombstone: 3}",
        "f.yaml:4 assert_coverage.tombstone conflict",
    ),
    "a floor nobody knows": (
        "assert_coverage:\n  tombstones: 5/hour",
        "f.yaml:5 assert_coverage.tombstones malformed",
    ),
    "a negative floor": (
        "assert_coverage: {tombstones: {min: -1}}",
        "f.yaml:4 assert_coverage.tombstones.min greater_than_equal",
    ),
    "no time between samples": (
        "probe: {sample_every: 0s}",
        "f.yaml:4 probe.sample_every conflict",
    ),
    "prefill aborts without chunks": (
        "engine: {chunked_prefill_size: null}\naborts: {prefill: 0.1}",
        "f.yaml:5 aborts.prefill conflict",
    ),
}


def fault_of(text: str) -> KeyFaultError:
    with pytest.raises(KeyFaultError) as caught:
        Profile.from_yaml_text(text, "f.yaml")
    return caught.value


@pytest.mark.parametrize(("text", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_names_the_line_the_key_and_its_kind(text: str, fault: str) -> None:
    caught = fault_of(f"{BASE}{text}\n")

    assert f"{caught.place} {caught.key} {caught.fault}" == fault


# One message of each kind: where, what is wrong, and what to write instead.
SENTENCES = {
    "pols: {kv_tokens: 3}": "f.yaml:4: unknown key pols; did you mean pools?",
    "pools:\n  kv_tokens: 4096\n  mamba_slotz: 3": (
        "f.yaml:6: pools: unknown key mamba_slotz; did you mean mamba_slots?"
    ),
    "output: {zzz: 1}": "f.yaml:4: output: unknown key zzz; choose one of tokens.",
    "duration: 1:30": "f.yaml:4: duration: 1:30 is ambiguous; write 90s, 1h30m or 1.5h.",
    "pools:\n  kv_tokens: 8MiB": "f.yaml:5: pools.kv_tokens: must be a whole number, not '8MiB'.",
    "pools: 5": (
        "f.yaml:4: pools: must hold keys (kv_tokens, page_size, swa_full_tokens_ratio, "
        "mamba_slots, max_context_len), not 5."
    ),
    "gc: {mode: frozen}": (
        "f.yaml:4: gc.mode: must be default or freeze-after-warmup, not 'frozen'."
    ),
    "output: {tokens: [5, 1]}": "f.yaml:4: output.tokens: [5, 1] runs backwards; write [1, 5].",
    "aborts: {decode: 5}": "f.yaml:4: aborts.decode: must be at most 1.0, not 5.",
    "prompts: {families: 1000001}": (
        "f.yaml:4: prompts.families: must be at most 1000000, not 1000001."
    ),
    "prompts: {payload: 65MiB}": (
        "f.yaml:4: prompts.payload: must be at most 64.0 MiB, not '65MiB'."
    ),
    (
        "pools: {kv_tokens: 512, max_context_len: 1096}\n"
        "prompts: {system_tokens: 900, user_tokens: 100}\noutput: {tokens: 96}"
    ): (
        "f.yaml:4: pools.kv_tokens 512 cannot hold one request with a prompt of up to 1000 + "
        "output 96; at least 1097."
    ),
    "pools: {mamba_slots: 2}\nengine: {mamba_scheduler_strategy: extra_buffer}": (
        "f.yaml:4: pools.mamba_slots 2 cannot hold the state of one running request, one "
        "saved copy of it + one that the tree keeps; at least 3."
    ),
    "pools: {page_size: 64}\nengine:\n  chunked_prefill_size: 100": (
        "f.yaml:6: engine.chunked_prefill_size 100 is not a multiple of page_size 64; 64 is."
    ),
    "assert_coverage: {tombstone: 3}": (
        "f.yaml:4: assert_coverage.tombstone is not an event the engine counts; did you mean "
        "tombstones?"
    ),
    "name: other": "f.yaml:4: name is given twice, first on line 1.",
    "pools: {kv_tokens: 3": (
        "f.yaml:5: malformed YAML: expected ',' or '}', but got '<stream end>'."
    ),
}


@pytest.mark.parametrize(("text", "sentence"), SENTENCES.items())
def test_a_fault_is_one_sentence_with_what_would_be_right(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Profile.from_yaml_text(f"{BASE}{text}\n", "f.yaml")

    assert str(caught.value) == sentence


ARRIVALS = {
    "{process: closed}": "arrival.concurrency conflict",
    "{process: poisson}": "arrival.rate conflict",
    "{process: closed, concurrency: 4, rate: 3}": "arrival.rate conflict",
    "{process: poisson, rate: 3, concurrency: 4}": "arrival.concurrency conflict",
    "{process: poisson, rate: 3, think: 1s}": "arrival.think conflict",
    "{process: poisson, rate: 3/h}": "arrival.rate malformed",
    "{process: closed, concurrency: 4, bursts: {every: 5s, length: 9s}}": (
        "arrival.bursts.length conflict"
    ),
    "{process: open, concurrency: 4}": "arrival.process literal_error",
}


@pytest.mark.parametrize(("arrival", "fault"), ARRIVALS.items())
def test_an_arrival_that_cannot_be_is_refused(arrival: str, fault: str) -> None:
    text = f"name: x\npromise: [{{rss: 1GB/h, collectible: 1GB/h}}]\narrival: {arrival}\n"

    caught = fault_of(text)

    assert (caught.place, f"{caught.key} {caught.fault}") == ("f.yaml:3", fault)


BAD_INPUT = {
    "{overlong: 0.4, truncate: 0.2}": "bad_input conflict",
    "{overlong: 0.3, malformed: 0.8}": "bad_input conflict",
    "{malformed: 0.8, without: [bad_prompts]}": "bad_input.without.0 enum",
    f"{{malformed: 0.8, without: [{', '.join(Malformed)}]}}": "bad_input.without conflict",
}


@pytest.mark.parametrize(("bad_input", "fault"), BAD_INPUT.items())
def test_more_bad_input_than_there_may_be_is_refused(bad_input: str, fault: str) -> None:
    caught = fault_of(f"{BASE}bad_input: {bad_input}\n")

    assert f"{caught.key} {caught.fault}" == fault


LIMITS = {
    "[]": "promise conflict",
    "[{rss: 200MiB, collectible: 1GB/h}]": "promise.0.rss malformed",
    "[{rss: 1GB/h, collectible: 1GB/h}, {rss: 1GB/h, collectible: 1GB/h}]": (
        "promise.1.from conflict"
    ),
}


@pytest.mark.parametrize(("limits", "fault"), LIMITS.items())
def test_a_limit_that_cannot_be_is_refused(limits: str, fault: str) -> None:
    caught = fault_of(f"name: x\narrival: {{concurrency: 4}}\npromise: {limits}\n")

    assert (caught.place, f"{caught.key} {caught.fault}") == ("f.yaml:3", fault)


SESSIONS = {
    "{share: 1.0, close_busy: 0.7, abandon: 0.6, timeout: 2s}": "sessions conflict",
    "{share: 1.0, abandon: 0.1}": "sessions.abandon conflict",
    "{share: 1.0, timeout: 0s}": "sessions.timeout conflict",
}


@pytest.mark.parametrize(("sessions", "fault"), SESSIONS.items())
def test_sessions_that_cannot_be_are_refused(sessions: str, fault: str) -> None:
    caught = fault_of(f"{BASE}sessions: {sessions}\n")

    assert (caught.place, f"{caught.key} {caught.fault}") == ("f.yaml:4", fault)


def test_sessions_bring_no_payloads() -> None:
    with pytest.raises(ConfigError, match=r"sessions\.share and prompts\.payload exclude each"):
        base("prompts: {payload: 4KiB}\nsessions: {share: 0.5}\n")


def test_several_faults_are_a_sentence_each_in_the_order_of_the_file() -> None:
    caught = fault_of(f"{BASE}output: {{tokens: 0}}\ngc: {{mode: no}}\nsede: 1\n")

    assert [sentence.split(" ")[0] for sentence in caught.sentences] == [
        "f.yaml:4:",
        "f.yaml:5:",
        "f.yaml:6:",
    ]
    assert caught.key == "output.tokens"


def test_of_very_many_faults_the_first_are_named_and_the_others_counted() -> None:
    caught = fault_of(BASE + "".join(f"key{n}: 1\n" for n in range(100)))

    assert len(caught.sentences) == 21
    assert "80 more faults follow" in caught.sentences[-1]


def test_parts_that_do_not_fit_together_are_all_named() -> None:
    caught = fault_of(f"{BASE}assert_coverage: {{no_such: 1, nor_this: 2}}\n")

    assert len(caught.sentences) == 2
    assert caught.fault == "conflict"


def test_a_missing_key_is_named_without_a_line_of_its_own() -> None:
    with pytest.raises(ConfigError) as caught:
        Profile.from_yaml_text("name: x\narrival: {concurrency: 1}\n", "f.yaml")

    assert str(caught.value) == "f.yaml: promise is missing."


def test_defaults_are_two_hours_a_million_objects_and_the_default_collector() -> None:
    profile = base()

    assert profile.duration_s == 7200.0
    assert profile.ballast.objects == 1_000_000
    assert profile.gc.mode == "default"
    assert profile.prompts.reuse == pytest.approx(1.1)


def test_resolved_is_plain_json_and_reads_back_as_the_same_profile() -> None:
    profile = churn()

    text = json.dumps(profile.resolved(), allow_nan=False)

    assert Profile.from_resolved(json.loads(text)) == profile
    assert Profile.from_yaml_text(yaml.safe_dump(profile.resolved())) == profile


def test_overrides_are_read_like_values_of_the_file() -> None:
    profile = base().with_overrides(
        {
            "pools.mamba_slots": "64",
            "duration": "1h30m",
            "output.tokens": "[1, 9]",
            "assert_coverage.tombstones": ">5/min",
            "promise.0.rss": "1GB/h",
            "arrival.bursts": "{every: 10s, length: 2s}",
            # YAML reads this as False.
            "engine.check_level": "off",
        }
    )

    assert profile.pools.mamba_slots == 64
    assert profile.duration_s == 5400.0
    assert profile.output.tokens == TokenRange(1, 9)
    assert profile.coverage_minimums(120.0) == {"tombstones": 10}
    assert profile.limits[0].rss_bytes_per_h == 1e9
    assert profile.arrival.bursts is not None
    assert profile.engine.check_level == "off"
    assert base().pools.mamba_slots != 64


def test_another_process_drops_the_keys_of_the_former_one() -> None:
    thinking = base().with_overrides({"arrival": "{process: closed, concurrency: 4, think: 1s}"})

    poisson = thinking.with_overrides({"arrival.process": "poisson", "arrival.rate": "4/s"})
    closed = poisson.with_overrides({"arrival.concurrency": "2", "arrival.process": "closed"})

    assert (poisson.arrival.concurrency, poisson.arrival.think_s) == (None, 0.0)
    assert (closed.arrival.concurrency, closed.arrival.rate_per_s) == (2, None)


OVERRIDES = {
    ("pools.mamba_slotz", "64"): (
        "--set pools.mamba_slotz=64: pools: unknown key mamba_slotz; did you mean mamba_slots?"
    ),
    ("pools.kv_tokens", "12"): (
        "--set pools.kv_tokens=12: pools.kv_tokens 12 cannot hold one request with a prompt of up "
        "to 224 + output 24; at least 249."
    ),
    ("name.x", "1"): "--set name.x=1: name has no keys of its own.",
    ("promise.7.rss", "1GB/h"): "--set promise.7.rss=1GB/h: promise.7 has no keys of its own.",
    ("promise.7", "{}"): "--set promise.7={}: that list has entries 0 to 0.",
}


@pytest.mark.parametrize(("setting", "sentence"), OVERRIDES.items())
def test_an_override_that_cannot_be_names_the_setting(
    setting: tuple[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        base().with_overrides({setting[0]: setting[1]})

    assert str(caught.value) == sentence


def test_thresholds_are_kept_as_they_are_written() -> None:
    profile = Profile.from_yaml_text(BASE + "thresholds: [' hit_rate.mean > 60% ']\n")

    assert profile.thresholds == ("hit_rate.mean > 60%",)
    assert Profile.from_resolved(profile.resolved()).thresholds == profile.thresholds


def test_the_limit_is_that_of_the_planned_duration() -> None:
    profile = base().with_overrides(
        {
            "promise": "[{rss: 4GiB/h, collectible: 2GiB/h}, "
            "{from: 10m, rss: 1GiB/h, collectible: 1GiB/h}]"
        }
    )

    assert profile.limits_as_planned(599.0).rss_bytes_per_h == 4 * 2**30
    assert profile.limits_as_planned(600.0).rss_bytes_per_h == 2**30


def test_a_run_shorter_than_the_first_limit_has_none() -> None:
    profile = base().with_overrides({"promise": "[{from: 7m, rss: 1GiB/h, collectible: 1GiB/h}]"})

    assert profile.limits_as_planned(419.0).rss_bytes_per_h is None
    assert profile.decides_from_s == 420.0


def test_a_run_decides_no_earlier_than_a_leak_can_be_called() -> None:
    limited_early = base().with_overrides({"promise": "[{from: 2m, rss: 1GiB/h}]"})
    never = base().with_overrides({"promise": "[{from: 2m, hit_rate: 0.5}]"})

    assert limited_early.decides_from_s == 300.0
    assert never.decides_from_s == float("inf")


def test_coverage_by_the_minute_grows_with_the_run_and_a_count_does_not() -> None:
    profile = base('assert_coverage: {tombstones: ">30/min", cow_copies: ">=20", retracts: ">3"}\n')

    assert profile.coverage_minimums(60) == {"tombstones": 30, "cow_copies": 20, "retracts": 4}
    assert profile.coverage_minimums(43200) == {
        "tombstones": 21600,
        "cow_copies": 20,
        "retracts": 4,
    }


@pytest.mark.parametrize("duration_s", [60.0, 180.0, 600.0, 7200.0, 43200.0])
def test_the_automatic_cadence_gives_at_least_thirty_probes_in_the_second_half(
    duration_s: float,
) -> None:
    cadence = base().cadence(duration_s)

    assert duration_s / 2 / cadence.collectible_every_s >= 30
    assert duration_s / cadence.sample_every_s >= 100
    assert duration_s / cadence.checkpoint_every_s >= 4


def test_a_given_cadence_is_kept() -> None:
    profile = base("probe: {sample_every: 2s, collectible_every: 7s}\ncheckpoint: {every: 30s}\n")

    cadence = profile.cadence(600)

    assert (cadence.sample_every_s, cadence.collectible_every_s) == (2.0, 7.0)
    assert cadence.checkpoint_every_s == 30.0


def test_under_a_trace_nothing_is_asserted_and_the_profile_adds_no_traffic() -> None:
    overrides = {"engine.enable_priority_scheduling": "true", "controls.pause_every": "5s"}
    own = base("priorities: []").with_overrides(
        {**overrides, "priorities": "[{value: 1, share: 1.0}]"}
    )
    replay = churn(assert_coverage="{tombstones: 5}").for_replay()

    assert own.for_replay().priorities == ()
    assert own.for_replay().controls.pause_every_s is None

    assert replay.coverage_minimums(600) == {}
    assert replay.aborts.decode == 0
    assert replay.bad_input.overlong == 0
    assert replay.options.share == 0
    assert replay.pools == churn().pools


def test_the_longest_prompt_is_a_whole_conversation_or_what_the_context_leaves() -> None:
    short = base("prompts: {system_tokens: 50, user_tokens: 10}\noutput: {tokens: 5}\n")
    long = short.with_overrides({"conversations.turns": "[1, 3]"})
    endless = short.with_overrides({"conversations.turns": "[1, 1000]"})

    assert max_prompt_tokens(short) == 60
    assert max_prompt_tokens(long) == 50 + 3 * 10 + 2 * 5
    assert max_prompt_tokens(endless) == 2048 - 5


def test_the_published_schema_is_valid_and_accepts_every_shipped_profile() -> None:
    schema = profile_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    # `jsonschema.validate` would check the schema itself again for each profile.
    validator = jsonschema.Draft202012Validator(schema)

    for path in list_profiles().values():
        validator.validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        validator.validate(Profile.from_yaml(path).resolved())
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**base().resolved(), "pols": 3})


def test_the_schema_beside_the_profiles_is_the_one_in_force() -> None:
    shipped = profiles_dir() / "profile.schema.json"

    assert json.loads(shipped.read_text(encoding="utf-8")) == profile_json_schema(), (
        "write json.dumps(profile_json_schema(), indent=2) to profiles/profile.schema.json"
    )


def test_an_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    listed = tmp_path / "list.yaml"
    listed.write_text("- 1\n")

    for path, sentence in (
        (tmp_path, "the profile cannot be read: Is a directory."),
        (binary, "is not text in UTF-8 (byte 0); a profile is a file of YAML."),
        (empty, "the profile is empty; it must hold keys such as name:."),
        (listed, "the profile is not a mapping; it must hold keys such as name:."),
    ):
        with pytest.raises(ConfigError) as caught:
            Profile.from_yaml(path)
        assert str(caught.value) == f"{path}: {sentence}"


def test_a_profile_may_name_its_model_and_else_means_the_default() -> None:
    assert base().model == "qwen3-next"

    named = base("model: attention-tiny\n")

    assert named.model == "attention-tiny"
    assert Profile.from_resolved(named.resolved()).model == "attention-tiny"


def test_a_queue_timeout_is_a_time_or_nothing() -> None:
    assert base().aborts.queue_timeout_s is None
    patient = base("aborts: {queue_timeout: 400ms}\n")
    assert patient.aborts.queue_timeout_s == 0.4
    assert Profile.from_resolved(patient.resolved()) == patient

    with pytest.raises(ConfigError, match=r"aborts.queue_timeout must be longer than 0s"):
        base("aborts: {queue_timeout: 0s}\n")
