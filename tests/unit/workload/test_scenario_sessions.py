"""A workload with sessions against a real engine: both agree on each session's history."""

from __future__ import annotations

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.clock import FakeClock
from hybridbench.records.messages import Abort, CloseSession, Disconnect, OpenSession, Submit
from hybridbench.workload.actions import WaitUntil
from hybridbench.workload.profile import Profile
from hybridbench.workload.scenario import Scenario
from tests.builders import NANO_MODEL, assert_idle_and_clean, assert_nothing_lost, make_engine
from tests.unit.workload.profiles import base

STEP_S = 0.01
SESSIONS = """\
pools: {kv_tokens: 1024, mamba_slots: 48, max_context_len: 128}
engine: {max_running_requests: 20, chunked_prefill_size: 16}
prompts:
  {families: 3, system_tokens: [4, 10], user_tokens: [2, 8], long_tokens: [24, 40], reuse: uniform}
conversations: {turns: [1, 4], open: 10, branch: 0.2, edit: 0.2}
output: {tokens: [2, 8]}
sampling: {stop: 0.2}
aborts: {queued: 0.05, prefill: 0.05, decode: 0.08, disconnect: 0.05}
sessions:
  {share: 0.8, think: 50ms, hold: 80ms, close_busy: 0.3, abandon: 0.1, timeout: 2s, overlong: 0.05,
    overlap: 0.05}
"""


class Drive:
    """Executes a scenario's actions on an engine, and reports the results to the scenario."""

    def __init__(self, profile: Profile, seed: int = 1) -> None:
        self.clock = FakeClock()
        self.engine: Engine = make_engine(
            clock=self.clock,
            kv_tokens=1024,
            mamba_slots=48,
            max_running_requests=20,
            chunked_prefill_size=16,
        )
        self.scenario = Scenario(profile, NANO_MODEL.vocab_size, seed)
        self.rejected: list[tuple[str, str]] = []
        self.most_open = 0
        self.log: list[object] = []
        self.same_prompts = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._act()
            for event in self.engine.step():
                self._tell(event)
            self.most_open = max(self.most_open, len(self.engine.scheduler.sessions))
            self.clock.advance(STEP_S)
        assert_nothing_lost(self.engine)

    def _act(self) -> None:
        now_s = self.clock.monotonic_s()
        while True:
            action = self.scenario.next_action(now_s)
            self.log.append(action)
            match action:
                case WaitUntil(due_s):
                    assert due_s is None or due_s > now_s
                    return
                case OpenSession(session_id, timeout_s):
                    assert self.engine.open_session(session_id, timeout_s=timeout_s or None)
                case CloseSession(session_id):
                    self.engine.close_session(session_id)
                case Abort(rid):
                    self.engine.abort(rid)
                case Disconnect(rid):
                    self.engine.disconnect(rid)
                case Submit():
                    self._submit(action)

    def _submit(self, action: Submit) -> None:
        values = action.sampling
        params = SamplingParams(
            max_new_tokens=values.max_new_tokens,
            temperature=values.temperature,
            top_k=values.top_k,
            seed=values.seed,
            ignore_eos=values.ignore_eos,
            stop_token_ids=values.stop_token_ids,
        )
        self.engine.submit(
            action.rid, action.input_ids, params, session_id=action.session_id or None
        )

    def _tell(self, event: EngineEvent) -> None:
        scenario, now_s = self.scenario, self.clock.monotonic_s()
        match event.kind:
            case EventKind.ADMITTED:
                scenario.on_admitted(event.rid)
            case EventKind.FIRST_TOKEN:
                scenario.on_first_token(event.rid, now_s)
            case EventKind.REJECTED:
                self.rejected.append((event.rid, event.reason))
                scenario.on_rejected(event.rid, event.reason)
            case EventKind.FINISHED | EventKind.ABORTED:
                prompt = scenario.prompt_of(event.rid)
                if event.req is not None and prompt is not None:
                    assert list(prompt) == event.req.origin_input_ids
                    self.same_prompts += 1
                scenario.on_finished(event.rid, event.output_ids, event.reason, now_s)

    def check_what_clients_believe(self) -> int:
        """Check that idle sessions have their client's history; return how many were checked."""
        checked = 0
        pool = self.scenario._conversations
        thinking = [entry[2] for entry in pool._thinking._heap]
        for conversation in [*pool._idle, *thinking]:
            if conversation.session is None or not conversation.session.is_open:
                continue
            session = self.engine.scheduler.sessions.get(conversation.session.session_id)
            if session is not None:
                # Before the first answer, the client's history is a system prompt not yet sent.
                assert not session.tokens or session.tokens == conversation.history
                checked += 1
        return checked


def test_a_client_and_its_session_always_agree_on_what_was_said() -> None:
    drive = Drive(base(SESSIONS))
    checked = 0

    for _ in range(45):
        drive.run(20)
        checked += drive.check_what_clients_believe()

    assert checked > 60
    assert drive.same_prompts > 60
    counts, counters = drive.scenario.counts(), drive.engine.counters
    assert counts["unknown_reports"] == 0
    assert counts["session_overlong"] > 6
    assert counts["sessions_opened"] == counters.session_opens > 30
    assert counters.session_restores > 30
    assert counters.session_deferred_closes > 5
    assert counters.session_timeouts > 1
    for stage in ("queued", "prefill", "decode"):
        assert counters.as_dict()[f"session_abort_{stage}"] > 1, stage
    # Only requests meant to be refused are refused.
    reasons = [reason for _, reason in drive.rejected]
    assert sum("more than the" in reason for reason in reasons) == counts["session_overlong"]
    busy = sum("turn under way" in reason or "being closed" in reason for reason in reasons)
    # The turn may end while its client tries once more; the session takes that turn.
    assert counts["session_overlaps"] > busy - 10 > 10
    assert len(reasons) == busy + counts["session_overlong"]


def test_a_session_that_took_two_turns_at_once_is_closed_and_not_continued() -> None:
    """Over HTTP, the second may arrive after the first was answered."""
    settings = "sessions: {share: 1.0, overlap: 1.0}\nconversations: {turns: 9, open: 1}\n"
    one_client = base(settings).with_overrides({"arrival.concurrency": "1"})
    scenario = Scenario(one_client, 64)

    def sent(now_s: float) -> list[object]:
        actions: list[object] = []
        while not isinstance(action := scenario.next_action(now_s), WaitUntil):
            actions.append(action)
        return actions

    first = sent(0.0)
    assert [type(action) for action in first] == [OpenSession, Submit, Submit]
    turns = [action.rid for action in first if isinstance(action, Submit)]
    for rid in turns:
        scenario.on_finished(rid, [1, 2], "length", 1.0)

    then = sent(2.0)
    assert [a.session_id for a in then if isinstance(a, CloseSession)] == ["s1"]
    assert [a.session_id for a in then if isinstance(a, Submit | OpenSession)] == ["s2"] * 3


def test_a_rejected_second_turn_is_tried_once_more_while_the_first_is_under_way() -> None:
    settings = "sessions: {share: 1.0, overlap: 1.0}\nconversations: {turns: 9, open: 1}\n"
    scenario = Scenario(base(settings).with_overrides({"arrival.concurrency": "1"}), 64)

    def sent() -> list[str]:
        rids = []
        while not isinstance(action := scenario.next_action(0.0), WaitUntil):
            rids += [action.rid] if isinstance(action, Submit) else []
        return rids

    first, second = sent()
    scenario.on_rejected(second, "busy")
    (third,) = sent()
    scenario.on_rejected(third, "busy")
    assert sent() == []
    scenario.on_finished(first, [1, 2], "length", 0.0)
    first, second = sent()
    scenario.on_finished(first, [1, 2], "length", 0.0)
    scenario.on_rejected(second, "busy")
    assert len(sent()) == 2  # the next turn, and another one beside it
    assert scenario.counts()["session_overlaps"] == 4


def test_open_conversations_are_bounded_while_clients_think() -> None:
    drive = Drive(base(SESSIONS + "warmup: {requests: 0}\n"))

    drive.run(700)

    # Open conversations, plus abandoned ones that have not timed out yet.
    assert len(drive.scenario._conversations) <= 10 + 8
    abandoned = drive.most_open - 18
    assert abandoned < 20


def test_at_rest_sessions_are_closed_where_the_profile_wants_that() -> None:
    profile = base(SESSIONS).with_overrides(
        {"sessions.at_rest": "closed", "sessions.abandon": "0", "sessions.timeout": "null"}
    )
    drive = Drive(profile)
    drive.run(300)
    assert len(drive.engine.scheduler.sessions) > 0

    drive.scenario.pause(drive.clock.monotonic_s())
    drive.run(60)

    assert drive.engine.is_idle
    assert len(drive.engine.scheduler.sessions) == 0
    assert_idle_and_clean(drive.engine)
    drive.scenario.resume(drive.clock.monotonic_s())
    drive.run(300)
    assert len(drive.engine.scheduler.sessions) > 0


def test_at_rest_sessions_stay_open_elsewhere_and_nothing_happens_to_them() -> None:
    drive = Drive(base(SESSIONS).with_overrides({"sessions.timeout": "1h"}))
    drive.run(300)
    drive.scenario.pause(drive.clock.monotonic_s())
    drive.run(60)
    held = len(drive.engine.scheduler.sessions)
    assert held > 0

    drive.log.clear()
    drive.run(200)

    assert len(drive.engine.scheduler.sessions) == held
    assert {type(action) for action in drive.log} == {WaitUntil}


def test_the_same_seed_and_answers_give_the_same_actions_with_sessions() -> None:
    logs = []
    for _ in range(2):
        drive = Drive(base(SESSIONS), seed=5)
        drive.run(200)
        logs.append([a for a in drive.log if not isinstance(a, WaitUntil)])

    assert logs[0] == logs[1]
    assert len(logs[0]) > 150


def test_traffic_without_sessions_is_what_it_was() -> None:
    """With the keys present but no share, nothing is drawn for sessions."""
    plain = SESSIONS.split("sessions:", maxsplit=1)[0]
    logs = []
    for extra in (plain, plain + "sessions: {think: 50ms, hold: 1s, close_busy: 0.5}\n"):
        drive = Drive(base(extra), seed=5)
        drive.run(200)
        logs.append([a for a in drive.log if isinstance(a, Submit)])

    assert logs[0] == logs[1]
    assert all(submit.session_id == "" for submit in logs[0])
