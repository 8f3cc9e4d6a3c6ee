from __future__ import annotations

import signal
from dataclasses import replace

import msgspec
import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.errors import ConfigError
from hybridbench.records import messages as m
from hybridbench.runs.boot import await_ready, boot_worker, check_capabilities
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.loop import WorkerLostError
from hybridbench.targets.target import Capability
from hybridbench.workload.catalog import list_profiles, load_profile
from tests.unit.runs.fakes import FakeTarget
from tests.unit.runs.soaks import make_plan
from tests.unit.runs.test_manifest import READY


def boot(*answers: m.FromWorker, gone: bool = False) -> m.Ready | None:
    clock = FakeClock()
    target = FakeTarget(clock)
    target.extra = list(answers)
    target.gone = gone
    ready = boot_worker(target, make_plan(), Interrupts())
    assert isinstance(target.posted[0], m.Start)
    return ready


def test_what_the_user_can_correct_is_the_workers_own_sentence() -> None:
    with pytest.raises(ConfigError, match="no preset"):
        boot(m.Fatal("there is no preset 'x'.", "", usage=True))


def test_any_other_failure_is_a_crash() -> None:
    with pytest.raises(WorkerLostError, match="failed before any traffic"):
        boot(m.Fatal("the engine failed before any traffic: MemoryError()", "trace"))
    with pytest.raises(WorkerLostError, match="ended while it built"):
        boot(gone=True)


def test_a_worker_that_does_not_take_the_traffic_is_refused() -> None:
    able = [capability for capability in READY.capabilities if capability != "drain"]
    ready = msgspec.structs.replace(READY, capabilities=able)

    assert boot(READY) is READY
    with pytest.raises(ConfigError, match="checkpoint needs an engine that takes drain"):
        boot(ready)


def test_a_worker_that_is_never_ready_is_given_up() -> None:
    with pytest.raises(WorkerLostError, match="not ready in 900 s"):
        boot()


def test_a_signal_during_boot_ends_the_wait() -> None:
    interrupts = Interrupts()
    interrupts.on_signal(signal.SIGTERM, None)
    clock = FakeClock()

    assert boot_worker(FakeTarget(clock), make_plan(), interrupts) is None


OF_SERVERS = {"refusals": "bad_input.malformed", "options": "options.share"}


@pytest.mark.parametrize("name", list_profiles())
def test_the_bundled_engine_takes_every_shipped_profile_but_those_for_servers(name: str) -> None:
    check_capabilities(load_profile(name), Capability)
    assert load_profile(name).of_servers_alone == OF_SERVERS.get(name, "")


@pytest.mark.parametrize("name", OF_SERVERS)
def test_requests_that_only_a_server_gets_are_refused_by_their_key(name: str) -> None:
    clock = FakeClock()
    plan = replace(make_plan(), profile=load_profile(name))

    with pytest.raises(ConfigError, match=f"profile {name}: {OF_SERVERS[name]} is for .* --url"):
        await_ready(FakeTarget(clock), plan, Interrupts())

    # A server started with the profile has its pools, but none of its traffic.
    assert load_profile(name).for_replay().of_servers_alone == ""


@pytest.mark.parametrize(
    ("profile", "lacking", "key"),
    [
        ("session-churn", Capability.SESSIONS, "sessions"),
        ("session-abort", Capability.ABORT, "aborts"),
        ("disconnect", Capability.DISCONNECT, "aborts.disconnect"),
        ("smoke", Capability.TRAFFIC, "arrival"),
        ("smoke", Capability.DRAIN, "checkpoint"),
    ],
)
def test_traffic_that_an_engine_does_not_take_is_refused_by_the_key_that_asks_for_it(
    profile: str, lacking: Capability, key: str
) -> None:
    able = [capability for capability in Capability if capability is not lacking]

    with pytest.raises(ConfigError, match=f"profile {profile}: {key} needs .* takes {lacking},"):
        check_capabilities(load_profile(profile), able)


def test_a_flush_at_each_rest_is_a_demand_as_well() -> None:
    profile = load_profile("smoke").with_overrides({"checkpoint.flush": "true"})
    able = [capability for capability in Capability if capability is not Capability.FLUSH]

    check_capabilities(load_profile("smoke"), able)
    with pytest.raises(ConfigError, match=r"checkpoint\.flush needs an engine that takes flush"):
        check_capabilities(profile, able)


def test_an_engine_need_not_take_what_nobody_sends() -> None:
    check_capabilities(
        load_profile("pr25770-ramp"), [Capability.TRAFFIC, Capability.DRAIN, Capability.FLUSH]
    )
