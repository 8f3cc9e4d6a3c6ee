from __future__ import annotations

import pytest

from hybridbench.records.messages import CloseSession, Disconnect, OpenSession, Submit
from hybridbench.workload.actions import Action, WaitUntil
from hybridbench.workload.build import build_traffic
from hybridbench.workload.in_turn import InTurn
from hybridbench.workload.profile import Profile, strictest_limits
from tests.unit.workload.profiles import base, churn
from tests.unit.workload.server import Server

VOCAB = 4096
SESSIONS = "sessions: {share: 1.0, at_rest: closed}\n"


def in_turn(*profiles: Profile) -> InTurn:
    traffic = build_traffic(profiles, VOCAB, None, 3)
    assert isinstance(traffic, InTurn)
    return traffic


def pause(traffic: InTurn, server: Server) -> None:
    """Pause ``traffic`` until nothing is in flight, then begin the next part's turn."""
    begun = len(server.log)
    traffic.pause(server.now_s)
    traffic.next_turn()
    server.drive(traffic, steps=400)
    assert traffic.in_flight == 0
    assert "submit" not in {what for what, _, _ in server.log[begun:]}
    traffic.resume(server.now_s)


def due(traffic: InTurn, now_s: float = 0.0) -> list[Action]:
    """Return what ``traffic`` does at ``now_s``."""
    actions: list[Action] = []
    while not isinstance(action := traffic.next_action(now_s), WaitUntil):
        actions.append(action)
    return actions


def test_one_part_submits_until_the_next_turn_and_each_keeps_its_own_place() -> None:
    traffic, server = in_turn(churn(), base()), Server(running=12, chunk=64, context=512)
    parts = []
    for _ in range(3):
        begun = len(server.log)
        server.drive(traffic, steps=300)
        parts.append({rid.split("/")[0] for _, rid, _ in server.log[begun:]})
        pause(traffic, server)

    assert parts == [{"0"}, {"1"}, {"0"}]
    submitted = [rid for what, rid, _ in server.log if what == "submit"]
    own = [part.counts()["submitted"] for part in traffic.parts]
    assert traffic.counts()["submitted"] == sum(own) == len(set(submitted))
    assert min(own) > 50
    prompts = [
        {text for what, rid, text in server.log if (what, rid[0]) == ("submit", p)} for p in "01"
    ]
    assert not prompts[0] & prompts[1]
    names = {traffic.name_of(rid) for rid in submitted}
    assert names == {churn().name, base().name}


def test_a_part_that_waits_still_cuts_off_its_requests() -> None:
    traffic = in_turn(base("aborts: {disconnect: 1.0}\noutput: {tokens: [64, 64]}\n"), base())
    first = traffic.next_action(0.0)
    assert isinstance(first, Submit)
    traffic.on_admitted(first.rid)
    traffic.on_first_token(first.rid, 1.0)
    traffic.pause(1.0)
    traffic.next_turn()
    traffic.resume(1.0)

    seen = due(traffic, 1000.0)
    assert seen[0] == Disconnect(first.rid)
    assert {action.rid[0] for action in seen[1:] if isinstance(action, Submit)} == {"1"}


def test_sessions_of_two_parts_have_different_ids_and_close_at_the_pause() -> None:
    traffic = in_turn(base(SESSIONS), base(SESSIONS))
    opened, submitted, closed = set(), set(), set()
    for _ in traffic.parts:
        actions = due(traffic)
        opened |= {one.session_id for one in actions if isinstance(one, OpenSession)}
        for request in (one for one in actions if isinstance(one, Submit)):
            submitted.add(request.session_id)
            traffic.on_finished(request.rid, [1], "length", 0.0)
        traffic.pause(0.0)
        closed |= {one.session_id for one in due(traffic) if isinstance(one, CloseSession)}
        traffic.next_turn()
        traffic.resume(0.0)

    assert opened == submitted == closed
    assert sorted(name[:2] for name in opened) == ["0/"] * 8 + ["1/"] * 8


def test_a_failure_or_a_refusal_of_any_part_is_one_of_the_whole() -> None:
    traffic = in_turn(base(), base())
    traffic.pause(0.0)
    traffic.next_turn()
    traffic.resume(0.0)
    action = due(traffic)[0]
    assert isinstance(action, Submit)
    assert traffic.prompt_of(action.rid) == action.input_ids
    traffic.on_rejected(action.rid, "the context is full")

    assert traffic.refusal == "the context is full"
    assert traffic.failure == ""
    assert traffic.describe()["parts"] == [part.describe() for part in traffic.parts]


@pytest.mark.parametrize(
    ("others", "limits"),
    [
        ([], [{"from_s": 0.0, "rss_anon_swap_bytes": 3.0 * 2**20, "hit_rate": 0.5}]),
        (
            ["promise: [{rss: 2MiB/h}, {from: 1m, rss: 1MiB/h, collectible: 4MiB/h}]"],
            [
                {"from_s": 0.0, "rss_anon_swap_bytes": 2.0 * 2**20},
                {
                    "from_s": 60.0,
                    "rss_anon_swap_bytes": 1.0 * 2**20,
                    "gc_collectible_bytes": 4.0 * 2**20,
                },
            ],
        ),
    ],
)
def test_the_lowest_limits_on_growth_apply_to_all(
    others: list[str], limits: list[dict[str, float]]
) -> None:
    texts = ["promise: [{rss: 3MiB/h, hit_rate: 0.5}]", *others]
    head = "name: test\narrival: {process: closed, concurrency: 8}\n"
    profiles = [Profile.from_yaml_text(head + text, "test.yaml") for text in texts]

    assert list(strictest_limits(profiles)) == limits
