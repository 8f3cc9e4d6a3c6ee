"""What `soak --url` sends, depending on its options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hybridbench.cli.observed import Course, ProbeOptions, TargetOptions, check_url
from hybridbench.cli.run_options import SoakUi, StopMode
from hybridbench.cli.soak_server import ApiName, Requests, of_prepared, server_plan
from hybridbench.foundation.errors import ConfigError, UsageError
from hybridbench.records.prepared import PreparedTarget
from hybridbench.targets.engines.catalog import ENGINES
from hybridbench.targets.engines.engine import Engine
from hybridbench.targets.prepared import save
from hybridbench.workload.trace_replay import TraceOptions

TRACE = Path(__file__).parents[3] / "profiles" / "traces" / "synthetic-mooncake.jsonl"
PLAIN = Requests(
    url="http://127.0.0.1:8000/v1",
    api=None,
    stream=None,
    vocab=None,
    model=None,
    profiles=["session-churn"],
    seed=3,
    set_=[],
    trace=None,
    answers=None,
)


PROBES = ProbeOptions(None, None, None, False, None)
COURSE = Course(Path("results"), "2m", SoakUi.NONE, StopMode.NEVER, None, [])


def test_sessions_go_where_the_interface_has_them() -> None:
    traffic = replace(PLAIN, api=ApiName.GENERATE, vocab=5000).traffic()

    assert traffic.profiles[0].sessions.share == 0.8
    assert traffic.note == ""
    assert traffic.vocab_size == 5000
    assert traffic.url == "http://127.0.0.1:8000"


@pytest.mark.parametrize("api", [api for api in ApiName if api is not ApiName.GENERATE])
def test_where_it_has_none_the_report_says_what_they_became(api: ApiName) -> None:
    traffic = replace(PLAIN, api=api).traffic()

    assert traffic.profiles[0].sessions.share == 0
    assert traffic.note == (
        f"--api {api} has no sessions: those of session-churn were plain conversations"
    )


def test_several_profiles_take_turns_at_idle_points() -> None:
    both = replace(PLAIN, profiles=["session-churn", "refusals"], set_=["output.tokens=[4, 16]"])
    traffic = both.traffic()
    plan = server_plan(both, TARGET, PROBES, COURSE)

    assert plan.named_by[1] == traffic.name == "session-churn+refusals"
    assert [profile.output.tokens.high for profile in traffic.profiles] == [16, 16]
    assert traffic.note.endswith(" those of session-churn were plain conversations")
    stored = traffic.resolved()
    assert [profile["name"] for profile in stored.resolved["in_turn"]] == ["refusals"]  # type: ignore[index, union-attr, call-overload]
    turned = replace(both, profiles=["refusals", "session-churn"]).traffic()
    assert traffic.describe()["schedule"] != turned.describe()["schedule"]


@pytest.mark.parametrize(
    ("trace", "idle_every", "refusal"),
    [
        (TraceOptions(TRACE), None, "--trace replaces the traffic of a profile; give only one"),
        (None, "0", "--idle-every 0 leaves no idle points, at which the next profile begins"),
    ],
)
def test_several_profiles_without_a_turn_are_refused(
    trace: TraceOptions | None, idle_every: str | None, refusal: str
) -> None:
    asked = replace(PLAIN, profiles=["chat-churn", "refusals"], trace=trace)
    probes = replace(PROBES, idle_every=idle_every)

    with pytest.raises(UsageError, match=refusal):
        server_plan(asked, TARGET, probes, COURSE)


def test_requests_of_a_trace_that_no_context_of_the_profile_holds_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lengths = (400, 1900, 30_000)
    path.write_text(
        "".join(
            f'{{"timestamp": {1000 * i}, "input_length": {length}, "output_length": 40}}\n'
            for i, length in enumerate(lengths)
        )
    )

    def note(*settings: str) -> str:
        return replace(PLAIN, trace=TraceOptions(path), set_=list(settings)).traffic().note

    assert note() == (
        "of the first 3 requests of the trace 2 are cut to 512 tokens: set pools.max_context_len "
        "to the server's limit"
    )
    assert note("pools.max_context_len=20000").startswith("of the first 3 requests of the trace 1 ")
    assert note("pools.max_context_len=32768") == ""


def test_nothing_is_said_of_sessions_that_nobody_asked_for() -> None:
    assert replace(PLAIN, profiles=["chat-churn"]).traffic().note == ""
    assert "session" not in replace(PLAIN, trace=TraceOptions(TRACE)).traffic().note


@pytest.mark.parametrize(
    ("command", "environment", "exact"),
    [
        (["vllm", "serve", "DIR"], {"VLLM_BATCH_INVARIANT": "1"}, True),
        (["env", "VLLM_BATCH_INVARIANT=1", "vllm", "serve", "DIR"], {}, True),
        (["sglang", "serve", "--enable-deterministic-inference"], {}, True),
        (["vllm", "serve", "DIR"], {"VLLM_BATCH_INVARIANT": "0"}, False),
    ],
)
def test_a_server_that_promises_equal_bits_is_known_by_how_it_is_started(
    command: list[str], environment: dict[str, str], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    target = TargetOptions(command, None, None, None, None)

    traffic = server_plan(PLAIN, target, PROBES, COURSE).traffic

    assert traffic is not None
    assert traffic.exact is exact


TARGET = TargetOptions(None, None, None, None, None)


def test_a_key_goes_without_its_newline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary\n")

    assert server_plan(PLAIN, TARGET, PROBES, COURSE).key == "sk-canary"


@pytest.mark.parametrize("key", ["sk-canary\nX: y", "sk-canary\u20ac"])
def test_a_key_that_no_header_can_hold_is_refused(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)

    with pytest.raises(UsageError, match="no HTTP header can hold") as refused:
        server_plan(PLAIN, TARGET, PROBES, COURSE)

    assert "canary" not in str(refused.value)


def test_a_prepared_server_is_started_by_its_script_on_a_free_port(tmp_path: Path) -> None:
    save_target(tmp_path, "vllm", "0.32.0")
    options = replace(TARGET, command=["--max-num-seqs", "4"])

    asked, target = of_prepared("vllm==0.32.0", tmp_path, replace(PLAIN, url=""), options)

    script, port_option, port, *more = target.command or ()
    assert script == str(tmp_path / "vllm-0.32.0" / "bin" / "serve")
    assert (port_option, more) == ("--port", ["--max-num-seqs", "4"])
    # SGLang serves gRPC at a port that is 10000 higher.
    assert int(port) < 65_536 - 10_000
    assert asked.url == f"http://127.0.0.1:{port}"
    assert asked.api is ApiName.IDS
    assert asked.traffic().profiles[0].pools.max_context_len == 2048
    # As text, a word counts as many tokens as it has bytes.
    chat, _ = of_prepared("vllm==0.32.0", tmp_path, replace(PLAIN, api=ApiName.CHAT), options)
    assert chat.traffic().profiles[0].pools.max_context_len == 292
    long = replace(PLAIN, api=ApiName.RESPONSES, profiles=["one-by-one", "smoke"])
    with pytest.raises(UsageError, match=r"^--api responses .* about 292 words\. .* at least 500"):
        of_prepared("vllm==0.32.0", tmp_path, long, options)


def test_the_stored_command_line_is_the_one_that_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_target(tmp_path, "vllm", "0.32.0")
    typed = ["soak", "--target", "vllm==0.32.0", "--", "--max-num-seqs", "4"]
    monkeypatch.setattr(sys, "argv", ["hybridbench", *typed])
    options = replace(TARGET, command=typed[-2:])
    asked, target = of_prepared("vllm==0.32.0", tmp_path, replace(PLAIN, url=""), options)

    plan = server_plan(asked, target, PROBES, COURSE)

    assert plan.command == ("hybridbench", *typed)
    assert plan.target[-2:] == ("--max-num-seqs", "4")


def test_its_checkpoint_and_the_lengths_are_the_users_choice(tmp_path: Path) -> None:
    save_target(tmp_path, "sglang", "0.5.23")
    own = replace(PLAIN, model="qwen3-next", set_=["pools.max_context_len=1000"])

    asked, target = of_prepared("sglang==0.5.23", tmp_path, own, TARGET)

    assert (target.command or [])[0].endswith("bin/serve-hybrid")
    assert asked.model is None  # the server has its own name for it
    assert asked.traffic().profiles[0].pools.max_context_len == 1000


@pytest.mark.parametrize(
    ("name", "model", "refusal"),
    [
        (
            "vllm==0.32.0",
            None,
            "vllm==0.32.0 is not prepared in .*: hybridbench target prepare vllm",
        ),
        ("vllm", None, "the release is missing"),
        ("llamacpp==1", "qwen3-next", "llamacpp has no such checkpoint; there is llama"),
    ],
)
def test_a_server_that_is_not_there_is_refused_in_a_sentence(
    name: str, model: str | None, refusal: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=refusal):
        of_prepared(name, tmp_path, replace(PLAIN, model=model), TARGET)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda one: one.name)
def test_every_checkpoint_of_an_engine_has_its_start_script(engine: Engine) -> None:
    assert set(engine.models.values()) == set(engine.servers)
    assert not engine.servers or engine.context_len > 0


def test_a_checkpoint_that_the_release_did_not_serve_is_refused_with_its_log(
    tmp_path: Path,
) -> None:
    save_target(tmp_path, "vllm", "0.27.0", servers=("serve",))

    of_prepared("vllm==0.27.0", tmp_path, PLAIN, TARGET)
    with pytest.raises(
        UsageError, match=r"vllm==0\.27\.0 served no .*vllm-0\.27\.0/serve-hybrid\.log"
    ):
        of_prepared("vllm==0.27.0", tmp_path, replace(PLAIN, model="qwen3-next"), TARGET)


def save_target(
    root: Path, engine: str, release: str, servers: Sequence[str] = ("serve", "serve-hybrid")
) -> None:
    folder = root / f"{engine}-{release}"
    folder.mkdir()
    save(folder, PreparedTarget(engine=engine, release=release, servers=tuple(servers)))


def test_text_has_no_vocabulary() -> None:
    with pytest.raises(UsageError, match="belongs to --api ids and generate"):
        replace(PLAIN, api=ApiName.CHAT, vocab=5000).traffic()


def test_an_option_that_is_to_be_left_out_must_be_one() -> None:
    plain = replace(PLAIN, profiles=["options"])
    traffic = replace(plain, set_=["options.without=[seed, n]"]).traffic()
    assert traffic.profiles[0].options.without == ("seed", "n")

    with pytest.raises(ConfigError, match=r"options.without: 'sed' is not an option; did you"):
        replace(plain, set_=["options.without=[sed]"]).traffic()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8000", "an address begins with http://; write"),
        ("ftp://localhost", "an address begins with http://; write"),
        ("http://localhost:99999", "the host is missing, or the port is not 1 to 65535; write"),
        ("https://", "the host is missing, or the port is not 1 to 65535; write"),
    ],
)
def test_a_wrong_address_says_what_is_wrong_with_it(url: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_url("--ready", url, "/health")

    assert str(caught.value) == f"--ready: {said} for example http://127.0.0.1:8000/health."
