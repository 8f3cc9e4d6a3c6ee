"""A workload's counts stay right for any answers of the engine, in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybridbench.records.messages import Abort, Disconnect, Submit
from hybridbench.workload.actions import WaitUntil
from hybridbench.workload.scenario import Scenario
from tests.unit.workload.profiles import churn

CONTEXT = 512
ARRIVALS = (
    "{process: closed, concurrency: 6}",
    "{process: closed, concurrency: 3, bursts: {every: 2s, length: 1s, factor: 2}}",
    "{process: poisson, rate: 20, max_in_flight: 6}",
)


class ScenarioAgainstAnyEngine(RuleBasedStateMachine):
    """The model is the set of submitted requests that have not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, Submit] = {}
        self.doubles: list[str] = []
        self.now_s = 0.0
        self.paused = False
        self.reports = 0

    @initialize(seed=st.integers(0, 99), arrival=st.sampled_from(ARRIVALS))
    def build(self, seed: int, arrival: str) -> None:
        self.scenario = Scenario(churn(arrival=arrival), 4096, seed)

    @rule(delay_s=st.floats(0, 5))
    def time_passes(self, delay_s: float) -> None:
        self.now_s += delay_s

    @rule()
    def act(self) -> None:
        """Act like a driver: perform everything that is due before handling any answers."""
        while not isinstance(action := self.scenario.next_action(self.now_s), WaitUntil):
            if isinstance(action, Submit):
                self.submit(action)
            elif isinstance(action, Abort):
                assert action.rid in self.live
            else:
                assert isinstance(action, Disconnect)
                del self.live[action.rid]
                self.doubles = [rid for rid in self.doubles if rid != action.rid]
        assert action.due_s is None or action.due_s > self.now_s

    def submit(self, action: Submit) -> None:
        tokens = len(action.input_ids) + action.sampling.max_new_tokens
        assert len(action.input_ids) > CONTEXT or tokens <= CONTEXT
        assert not action.truncate or len(action.input_ids) > CONTEXT
        if action.rid in self.live:
            self.doubles.append(action.rid)
        else:
            assert not self.paused or self.doubles == []
            self.live[action.rid] = action

    @precondition(lambda self: self.doubles)
    @rule(data=st.data())
    def refuse_a_double(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(self.doubles))
        self.doubles.remove(rid)
        self.scenario.on_rejected(rid, "duplicate id")

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stage=st.sampled_from(["admitted", "token", "finished", "refused"]))
    def answer(self, data: st.DataObject, stage: str) -> None:
        rid = data.draw(st.sampled_from(sorted(self.live)))
        if stage == "admitted":
            self.scenario.on_admitted(rid)
        elif stage == "token":
            self.scenario.on_first_token(rid, self.now_s)
        elif stage == "refused" and rid not in self.doubles:
            self.scenario.on_rejected(rid, "no room")
            del self.live[rid]
        elif stage == "finished":
            most = self.live[rid].sampling.max_new_tokens
            count = data.draw(st.integers(0, most))
            self.scenario.on_finished(rid, [1] * count, "length", self.now_s)
            if rid in self.doubles:
                # The duplicate has become a request in its own right.
                self.doubles.remove(rid)
            else:
                del self.live[rid]

    @rule()
    def report_on_a_stranger(self) -> None:
        self.scenario.on_finished("stranger", [1], "length", self.now_s)
        self.reports += 1

    @rule()
    def pause_or_resume(self) -> None:
        if self.paused:
            self.scenario.resume(self.now_s)
        else:
            self.scenario.pause(self.now_s)
        self.paused = not self.paused

    @invariant()
    def the_books_agree(self) -> None:
        if not self.live and not self.reports and self.now_s == 0.0:
            return
        counts = self.scenario.counts()
        assert self.scenario.in_flight == len(self.live)
        assert self.scenario.in_flight <= 6
        assert counts["submitted"] == counts["ended"] + self.scenario.in_flight
        assert counts["unknown_reports"] == self.reports


ScenarioAgainstAnyEngine.TestCase.settings = settings(stateful_step_count=60)
TestScenarioAgainstAnyEngine = ScenarioAgainstAnyEngine.TestCase
