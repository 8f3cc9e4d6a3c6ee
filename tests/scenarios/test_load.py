"""The load client as used by a run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from hybridbench.foundation.clock import SystemClock
from hybridbench.runs.http_load import HttpLoad, Traffic, words_of
from hybridbench.workload.catalog import load_profile


def traffic(seed: int = 1, **settings: str) -> Traffic:
    keys = {key.replace("__", "."): value for key, value in settings.items()}
    return Traffic(
        # Nothing listens on this port.
        url="http://127.0.0.1:9",
        api="completions",
        stream=True,
        profiles=(load_profile("chat-churn").with_overrides(keys).for_servers(),),
        source="chat-churn",
        seed=seed,
        vocab_size=words_of("completions", 256),
        model="m",
    )


def until(load: HttpLoad, done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60.0
    while not done():
        assert time.monotonic() < end_s
        load.tend()
        time.sleep(0.02)


def test_a_seed_is_one_schedule_and_another_seed_another() -> None:
    hashes = [traffic(seed).describe()["schedule"] for seed in (1, 1, 2)]

    assert hashes[0] == hashes[1] != hashes[2]
    assert traffic(prompts__families="3").describe()["schedule"] != hashes[0]


def test_a_key_and_a_password_are_in_no_description() -> None:
    secret = Traffic(**{**vars(traffic()), "url": "http://user:word@127.0.0.1:9"})

    assert "word@" not in str(secret.describe())
    assert "canary" not in str(secret.describe())
    assert secret.start("canary").key == "canary"


def test_a_client_counts_from_its_start_and_rests_when_it_is_paused() -> None:
    load = HttpLoad(traffic().start(""), SystemClock())
    assert load.counters()["events.requests_submitted"] == 0
    load.start()
    try:
        until(load, lambda: load.counters().get("events.requests_failed.connect", 0) > 0)
        load.pause()
        until(load, lambda: load.rests)
        assert load.levels()["client_anon_swap_bytes"] > 2**20
    finally:
        load.stop()
    assert not load.wanted


def test_after_a_pause_the_next_profile_is_sent() -> None:
    chats = traffic()
    both = replace(chats, profiles=(*chats.profiles, load_profile("refusals").for_servers()))
    load = HttpLoad(both.start(""), SystemClock())

    def ended() -> set[str]:
        return {name for name, count in load.counters().items() if count > 0}

    load.start()
    try:
        until(load, lambda: "events.requests_failed.connect" in ended())
        load.pause()
        until(load, lambda: load.rests)
        assert not any(name.startswith("events.requests_with.") for name in ended())
        assert "events.requests_of.chat-churn" in ended()
        assert "events.requests_of.refusals" not in ended()
        load.resume()
        until(load, lambda: any(name.startswith("events.requests_with.") for name in ended()))
        until(load, lambda: "events.requests_of.refusals" in ended())
    finally:
        load.stop()


def test_a_client_that_is_killed_is_the_end_of_the_load() -> None:
    load = HttpLoad(traffic().start(""), SystemClock())
    load.start()
    try:
        until(load, lambda: bool(load.levels()))
        assert load.pid is not None
        os.kill(load.pid, signal.SIGKILL)
        until(load, lambda: bool(load.failure))
        assert load.failure == "the load client ended (signal 9)"
    finally:
        load.stop()


def test_a_server_without_models_is_said_to_be_one() -> None:
    nameless = Traffic(**{**vars(traffic()), "model": ""})
    load = HttpLoad(nameless.start(""), SystemClock())
    load.start()
    try:
        until(load, lambda: bool(load.failure))
        assert load.failure == "the server lists no model at /v1/models; name one with --model"
    finally:
        load.stop()


@pytest.mark.parametrize("api", ["completions", "chat", "responses"])
def test_text_has_its_own_words(api: str) -> None:
    assert words_of(api, 9000) == 128  # type: ignore[arg-type]
    assert words_of("ids", 9000) == 9000
