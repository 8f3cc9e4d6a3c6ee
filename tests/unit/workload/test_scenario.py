from __future__ import annotations

import gc
import sys

import pytest

from hybridbench.records.messages import Abort, Submit
from hybridbench.workload.actions import Malformed, ServerSubmit, WaitUntil
from hybridbench.workload.build import build_workload
from hybridbench.workload.catalog import list_profiles, load_profile
from hybridbench.workload.scenario import Scenario
from hybridbench.workload.schedule import schedule_hash
from tests.unit.workload.profiles import base, churn
from tests.unit.workload.server import Server

VOCAB = 4096


def churn_server(seed: int = 0) -> Server:
    return Server(running=12, chunk=64, context=512, seed=seed)


def test_the_same_seed_and_answers_give_the_same_actions() -> None:
    logs = []
    for seed in (3, 3, 4):
        server = churn_server()
        server.drive(Scenario(churn(), VOCAB, seed), steps=600)
        logs.append(server.log)

    assert logs[0] == logs[1]
    assert len(logs[0]) > 500
    assert logs[0] != logs[2]


def test_a_closed_loop_keeps_its_concurrency_and_never_more() -> None:
    scenario = Scenario(churn(), VOCAB)
    server = churn_server()

    server.drive(scenario, steps=5)
    floor = []
    server.drive(scenario, steps=800, look=lambda: floor.append(scenario.in_flight))

    assert server.peak == 16
    assert min(floor) >= 8  # a step ends some requests; the next poll refills before it


def test_every_way_a_request_can_end_happens_where_it_was_meant_to() -> None:
    scenario = Scenario(churn(), VOCAB)
    server = churn_server()

    server.drive(scenario, steps=6000)

    counts = scenario.counts()
    assert counts["submitted"] > 4000
    assert server.ended["queued"] >= counts["abort_queued"] - 1 > 100
    assert server.ended["prefill"] > 0.9 * counts["abort_prefill"] > 80
    assert server.ended["decode"] > 100
    assert counts["disconnect"] > 50
    assert server.overlong_refused == counts["overlong"] > 50
    assert server.duplicates_refused == counts["duplicate_ids"] > 50
    assert counts["truncate"] > 30
    assert counts["rejections"] == server.overlong_refused + server.duplicates_refused
    assert counts["valid_refused"] == 0
    assert not scenario.refusal
    assert counts["unknown_reports"] == 0
    assert counts["submitted"] == counts["ended"] + scenario.in_flight


def test_twelve_thousand_requests_leave_no_more_behind_than_five_thousand() -> None:
    scenario = Scenario(churn(), VOCAB)
    server = churn_server()
    server.drive(scenario, steps=6_000)
    # The fake server's own log grows; the workload's memory must not.
    server.log.clear()
    gc.collect()
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()

    while scenario.counts()["submitted"] < 12_000:
        server.drive(scenario, steps=2_000)
        server.log.clear()

    gc.collect()
    assert len(gc.get_objects()) - objects < 500
    # Tokens are not tracked by the collector; allow for 24 chats of 512 tokens.
    assert sys.getallocatedblocks() - blocks < 24 * 512
    assert scenario.in_flight <= 16


def test_a_queued_abort_follows_its_submission_at_once() -> None:
    scenario = Scenario(churn(aborts="{queued: 1.0}", bad_input="{}"), VOCAB)

    first = scenario.next_action(0.0)
    second = scenario.next_action(0.0)

    assert isinstance(first, Submit)
    assert second == Abort(first.rid)


def test_an_abort_that_the_end_of_its_request_overtakes_is_left_unsaid() -> None:
    profile = churn(aborts="{prefill: 1.0}", bad_input="{}", arrival__concurrency="1")
    scenario = Scenario(profile, VOCAB)
    first = scenario.next_action(0.0)
    assert isinstance(first, Submit)

    scenario.on_admitted(first.rid)
    scenario.on_finished(first.rid, [1], "length", 0.1)

    following = scenario.next_action(0.1)
    assert isinstance(following, Submit)
    assert following.rid != first.rid


def test_a_prefill_abort_waits_for_the_admission_and_is_asked_once() -> None:
    profile = churn(aborts="{prefill: 1.0}", bad_input="{}", arrival__concurrency="1")
    scenario = Scenario(profile, VOCAB)
    submit = scenario.next_action(0.0)
    assert isinstance(submit, Submit)
    assert len(submit.input_ids) > 200  # several chunks, so that the abort does not come too late
    assert isinstance(scenario.next_action(0.0), WaitUntil)

    scenario.on_admitted(submit.rid)
    assert scenario.next_action(0.1) == Abort(submit.rid)
    scenario.on_admitted(submit.rid)
    assert scenario.next_action(0.1) == WaitUntil(None)


def test_a_decode_abort_comes_at_or_after_the_first_token() -> None:
    profile = churn(aborts="{decode: 1.0}", bad_input="{}", arrival__concurrency="1")
    scenario = Scenario(profile, VOCAB)
    submit = scenario.next_action(0.0)
    assert isinstance(submit, Submit)
    assert submit.sampling.max_new_tokens == profile.output.tokens.high
    assert scenario.next_action(5.0) == WaitUntil(None)

    scenario.on_first_token(submit.rid, 5.0)

    assert scenario.next_action(5.0) == Abort(submit.rid)
    scenario.on_finished(submit.rid, [1, 2], "aborted", 5.1)
    assert scenario.in_flight == 0


def test_a_pause_submits_nothing_still_cuts_what_is_due_and_owes_nothing_afterwards() -> None:
    profile = churn(arrival="{process: poisson, rate: 50}", aborts="{decode: 1.0}", bad_input="{}")
    scenario = Scenario(profile, VOCAB)
    assert isinstance(scenario.next_action(0.0), WaitUntil)
    submit = scenario.next_action(1.0)
    assert isinstance(submit, Submit)
    scenario.pause(1.0)
    scenario.on_first_token(submit.rid, 1.5)

    assert scenario.next_action(2.0) == Abort(submit.rid)
    assert scenario.next_action(500.0) == WaitUntil(None)
    scenario.resume(1000.0)

    # Arrivals due before the pause are still due; the pause itself added none.
    due = 0
    while isinstance(scenario.next_action(1000.0), Submit):
        due += 1
    assert due < 100
    assert scenario.counts()["arrivals_dropped"] == 0


def test_a_double_that_arrives_after_the_end_of_the_first_is_a_request_of_its_own() -> None:
    profile = churn(aborts="{}", bad_input="{duplicate_ids: 1.0}", arrival__concurrency="1")
    scenario = Scenario(profile, VOCAB)
    first, double = scenario.next_action(0.0), scenario.next_action(0.0)
    assert isinstance(first, Submit)
    assert first == double

    scenario.on_first_token(first.rid, 0.1)
    scenario.on_finished(first.rid, [1, 2], "length", 0.1)
    assert scenario.in_flight == 1
    scenario.on_admitted(first.rid)
    scenario.on_finished(first.rid, [3, 4], "length", 0.2)

    assert scenario.in_flight == 0
    assert scenario.counts()["unknown_reports"] == 0


def test_reports_on_unknown_requests_are_counted_and_change_nothing() -> None:
    scenario = Scenario(churn(), VOCAB)

    scenario.on_admitted("x")
    scenario.on_first_token("x", 1.0)
    scenario.on_finished("x", [1], "length", 1.0)
    scenario.on_rejected("x", "no")

    assert scenario.counts()["unknown_reports"] == 4
    assert scenario.in_flight == 0


def test_a_request_that_is_refused_although_it_is_valid_is_counted_with_the_reason() -> None:
    scenario = Scenario(churn(aborts="{}", bad_input="{}", arrival__concurrency="2"), VOCAB)
    for reason in ("it is cold", "it is late"):
        request = scenario.next_action(0.0)
        assert isinstance(request, Submit)
        scenario.on_rejected(request.rid, reason)

    assert scenario.refusal == "it is cold"
    assert scenario.counts()["valid_refused"] == scenario.counts()["rejections"] == 2
    assert scenario.in_flight == 0


def test_sampling_follows_its_shares_and_stop_tokens_lift_ignore_eos() -> None:
    shares = "greedy: 0.25, stop: 0.5, logprobs: 0.1"
    profile = base(f"sampling: {{temperature: 0.7, top_k: 40, top_p: 0.9, {shares}}}\n")
    scenario = Scenario(profile.with_overrides({"arrival.concurrency": "2000"}), VOCAB)
    values = []
    for _ in range(2000):
        action = scenario.next_action(0.0)
        assert isinstance(action, Submit)
        values.append(action.sampling)

    greedy = sum(value.temperature == 0.0 for value in values) / 2000
    stopping = sum(bool(value.stop_token_ids) for value in values) / 2000
    assert greedy == pytest.approx(0.25, abs=0.04)
    assert stopping == pytest.approx(0.5, abs=0.05)
    asking = sum(value.logprobs is not None for value in values) / 2000
    assert asking == pytest.approx(0.1, abs=0.03)
    assert all(value.ignore_eos == (not value.stop_token_ids) for value in values)
    assert {(value.top_k, value.top_p) for value in values} == {(40, 0.9)}
    assert len({value.seed for value in values}) > 1990


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_a_shipped_profile_runs_and_none_of_its_own_requests_is_too_long(name: str) -> None:
    profile = load_profile(name)
    workload = build_workload(profile, VOCAB)
    server = Server(
        running=profile.engine.max_running_requests,
        chunk=profile.engine.chunked_prefill_size or 2**20,
        context=profile.pools.max_context_len,
    )

    # Only host-pool-fill, with six requests a second, needs all rounds.
    for _ in range(6):
        server.drive(workload, steps=400)
        if server.ended["finish"] > 200:
            break

    counts = workload.counts()
    assert server.ended["finish"] > 50
    assert server.overlong_refused == counts["overlong"] + counts["session_overlong"]
    assert counts["unknown_reports"] == 0


def test_the_manifest_gets_the_seed_that_was_used() -> None:
    assert Scenario(churn(), VOCAB, seed=99).describe() == {
        "kind": "profile",
        "profile": "churn",
        "seed": 99,
        "vocab_size": VOCAB,
    }
    assert Scenario(churn(), VOCAB).describe()["seed"] == 11


def test_a_client_gives_up_when_it_waits_too_long_and_only_then() -> None:
    impatient = base("aborts: {queue_timeout: 50ms}")
    scenario = Scenario(impatient, VOCAB)
    server = Server(running=2, chunk=64, context=512)

    server.drive(scenario, steps=400)

    timeouts = scenario.counts()["queue_timeouts"]
    assert timeouts > 20
    # The last time-outs may not have arrived yet; a running request never times out.
    assert server.ended["queued"] >= timeouts - 6
    assert server.ended["prefill"] == server.ended["decode"] == 0
    assert server.ended["finish"] > 20


def test_nobody_gives_up_where_all_are_admitted_at_once() -> None:
    scenario = Scenario(base("aborts: {queue_timeout: 50ms}"), VOCAB)
    server = Server(running=8, chunk=4096, context=4096)

    server.drive(scenario, steps=400)

    assert scenario.counts()["queue_timeouts"] == 0
    assert server.ended["finish"] > 20


def submitted(scenario: Scenario, count: int) -> list[Submit]:
    requests: list[Submit] = []
    while len(requests) < count:
        action = scenario.next_action(0.0)
        assert isinstance(action, Submit)
        requests.append(action)
    return requests


def test_malformed_requests_have_their_share_and_each_kind_is_as_likely() -> None:
    profile = base("bad_input: {overlong: 0.1, malformed: 0.5, large: 0.25}\n")
    scenario = Scenario(profile.with_overrides({"arrival.concurrency": "4000"}), VOCAB)

    requests = submitted(scenario, 4000)

    bad = [r for r in requests if isinstance(r, ServerSubmit) and r.malformed is not None]
    assert len(bad) == scenario.counts()["malformed"] == pytest.approx(2000, rel=0.1)
    assert scenario.counts()["overlong"] == pytest.approx(400, rel=0.2)
    of_kind = [sum(request.malformed is kind for request in bad) for kind in Malformed]
    assert min(of_kind) > 0.6 * 2000 / len(Malformed)
    assert sum(request.large for request in bad) == pytest.approx(500, rel=0.2)
    assert len({request.draw for request in bad}) > 1990
    assert all(not request.options for request in bad)


def test_options_have_their_share_and_change_nothing_else_of_the_requests() -> None:
    plain = churn(
        aborts="{}",
        bad_input="{}",
        arrival__concurrency="2000",
        conversations="{turns: 1, open: 4000}",
    )
    with_options = plain.with_overrides({"options": "{share: 0.25, most: 3}"})

    requests = submitted(Scenario(with_options, VOCAB), 1000)

    chosen = [request for request in requests if isinstance(request, ServerSubmit)]
    assert len(chosen) == pytest.approx(250, rel=0.2)
    assert {request.options for request in chosen} == {1, 2, 3}
    assert all(request.malformed is None for request in chosen)
    without = submitted(Scenario(plain, VOCAB), 1000)
    assert [r.input_ids for r in requests] == [r.input_ids for r in without]


def test_what_is_wrong_and_which_options_are_part_of_a_schedule() -> None:
    names = [
        schedule_hash(Scenario(base(f"{keys}\n"), VOCAB))
        for keys in (
            "options: {share: 0.5}",
            "options: {share: 0.5}",
            "options: {share: 0.5, most: 4}",
            "options: {share: 0.5, without: [seed]}",
            "bad_input: {malformed: 0.5}",
            "bad_input: {malformed: 0.5, large: 0.5}",
        )
    ]

    assert names[0] == names[1]
    assert len(set(names)) == 5


def test_kinds_of_malformed_requests_that_are_left_out_are_not_sent() -> None:
    settings = "bad_input: {malformed: 1.0, without: [bad_prompt, cut_body]}\n"
    profile = base(settings).with_overrides({"arrival.concurrency": "1000"})

    requests = submitted(Scenario(profile, VOCAB), 1000)

    kinds = {request.malformed for request in requests if isinstance(request, ServerSubmit)}
    assert kinds == set(Malformed) - {Malformed.BAD_PROMPT, Malformed.CUT_BODY}
