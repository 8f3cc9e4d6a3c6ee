"""An engine under traffic chosen by Hypothesis: the rules that all such machines share."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.builders import assert_nothing_lost
from tests.engine_programs import EngineProgram

MOST_LIVE = 12


def engine_examples(share: float, steps: int) -> settings:
    """Settings for runs of up to ``steps`` actions, with ``share`` times the usual examples.

    Building and running an engine takes ten times as long as a tree or an allocator.
    """
    usual = settings.default.max_examples if settings.default else 50
    return settings(max_examples=max(1, round(share * usual)), stateful_step_count=steps)


class EngineMachine(RuleBasedStateMachine):
    """Submits, aborts, steps and flushes; a failure is shrunk to the few actions that matter.

    Subclasses set ``program`` in an ``initialize`` rule.  After every action no slot may be lost,
    and at the end the tokens must be those of the engine without reuse.
    """

    def __init__(self) -> None:
        super().__init__()
        self.program: EngineProgram | None = None

    @rule()
    def submit(self) -> None:
        assert self.program is not None
        if len(self.program.live) < MOST_LIVE:
            self.program.submit()

    @rule()
    def abort(self) -> None:
        assert self.program is not None
        self.program.abort()

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        assert self.program is not None
        for _ in range(count):
            self.program.step()

    @rule()
    def flush(self) -> None:
        assert self.program is not None
        assert self.program.engine.flush_cache() == self.program.engine.is_idle

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.program is not None:
            assert_nothing_lost(self.program.engine)

    def teardown(self) -> None:
        if self.program is not None:
            self.program.finish()
            self.program.compare_with_oracle()
