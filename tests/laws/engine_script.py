"""One short scripted run that passes every kind of allocation: the same each time it is made."""

from __future__ import annotations

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import assert_nothing_lost, make_engine

SYSTEM = list(range(1, 13))
PROMPTS: dict[str, list[int]] = {
    "first": SYSTEM,
    "turn": [*SYSTEM, 20, 21, 22],
    "fork": [*SYSTEM[:8], 30, 31, 32],
    "long": [*SYSTEM, *range(1, 40)],
    "other": [40, 41, 42, 43],
    "again": [*SYSTEM, 20, 21, 22, 23],
    "late": [*SYSTEM[:8], 30, 31, 32, 33, 34],
}
MAX_NEW_TOKENS = 6
# Submitted in pairs, a few steps apart, so that later ones find earlier ones in the tree.
STEPS_BETWEEN = 3


def scripted_engine() -> Engine:
    """Pools so small that states and KV are evicted, and chunks so short that there are several."""
    return make_engine(mamba_slots=5, kv_tokens=90, chunked_prefill_size=16, max_running_requests=3)


class ScriptedRun:
    """The script, step by step."""

    def __init__(self) -> None:
        self.engine = scripted_engine()
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, EventKind] = {}
        self.reasons: dict[str, str] = {}
        self.steps = 0
        self._to_submit = list(PROMPTS)

    @property
    def is_over(self) -> bool:
        return not self._to_submit and not self.engine.has_work

    def step(self) -> None:
        """Submit what is due, step, and look at every slot."""
        if self.steps % STEPS_BETWEEN == 0:
            for rid in self._to_submit[:2]:
                self.engine.submit(rid, PROMPTS[rid], SamplingParams(max_new_tokens=MAX_NEW_TOKENS))
            del self._to_submit[:2]
        self.steps += 1
        for event in self.engine.step():
            self._note(event)
        assert_nothing_lost(self.engine)

    def run(self, most_steps: int = 400) -> None:
        """To the end."""
        while not self.is_over:
            assert self.steps < most_steps, "the run does not end"
            self.step()

    def _note(self, event: EngineEvent) -> None:
        if event.ends_request:
            self.ends[event.rid] = event.kind
            self.outputs[event.rid] = list(event.output_ids)
            self.reasons[event.rid] = event.reason
