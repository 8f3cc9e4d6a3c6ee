"""A scripted run of two sessions and plain requests over barely sufficient pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product
from typing import Any

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EventKind
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import HiCache
from tests.builders import (
    NANO_MODEL,
    Audits,
    assert_idle_and_clean,
    assert_nothing_lost,
    make_attention_engine,
    make_engine,
    make_tracking_engine,
    make_window_engine,
)
from tests.drafters import HalfRightDrafter
from tests.host_transfers import ChosenTransfers
from tests.laws.engine_script import always, never, stages_of

PARAMS = SamplingParams(max_new_tokens=5, ignore_eos=True)
SESSIONS = ("s", "t")
# The tokens that each session's turns append; the second turn of "s" takes several chunks.
TURNS = {
    "s": [list(range(1, 13)), list(range(1, 40)), [30, 31]],
    "t": [[*range(1, 9), 40], [41, 42], [43]],
}
PLAIN = {"p0": [*range(1, 13), 20, 21], "p1": [22, 23, 24]}


@dataclass(frozen=True)
class SessionScript:
    """How to make the engine that serves the run, and a reference engine with the same model."""

    name: str
    make_engine: Callable[[], Engine]
    reference: Callable[..., Engine] = make_engine


def hybrid(name: str = "hybrid", **changes: Any) -> SessionScript:
    sizes: dict[str, Any] = {
        "mamba_slots": 7, "kv_tokens": 150, "chunked_prefill_size": 16, "max_running_requests": 4,
    }  # fmt: skip
    return SessionScript(name, lambda: make_engine(**sizes, **changes))


def attention(page_size: int, name: str, **changes: Any) -> SessionScript:
    sizes: dict[str, Any] = {
        "kv_tokens": 150 if page_size == 1 else 208,
        "chunked_prefill_size": 32,
        "max_running_requests": 4,
    }
    return SessionScript(
        name,
        lambda: make_attention_engine(page_size, **sizes, **changes),
        reference=make_attention_engine,
    )


HYBRID = hybrid()
PAGED = attention(16, "pages of 16")
# Sessions can wrap the unified tree like any other tree.
UNIFIED = hybrid("hybrid, unified tree", cache="unified")
UNIFIED_PAGED = attention(16, "pages of 16, unified tree", cache="unified")
# Overlapped steps, speculative decoding, or both.
AHEAD: dict[str, dict[str, Any]] = {
    "overlap": {"enable_overlap_schedule": True},
    "guesses": {"drafter": HalfRightDrafter(NANO_MODEL.vocab_size)},
    "both": {
        "enable_overlap_schedule": True, "drafter": HalfRightDrafter(NANO_MODEL.vocab_size),
    },
}  # fmt: skip
HYBRID_AHEAD = [hybrid(f"hybrid, {name}", **changes) for name, changes in AHEAD.items()]
ATTENTION_AHEAD = [
    attention(page_size, f"pages of {page_size}, {name}", **AHEAD[name])
    for page_size, name in product((1, 16), AHEAD)
]
# With track buffers a session holds two or three state slots between its turns.
TRACKED = SessionScript(
    "track buffers, pages of 4",
    lambda: make_tracking_engine(
        4, mamba_slots=14, kv_tokens=200, chunked_prefill_size=16, max_running_requests=4,
        mamba_cache_chunk_size=4, mamba_track_interval=4, enable_overlap_schedule=True,
    ),
)  # fmt: skip
TRACKED_AHEAD = SessionScript(
    "track buffers, pages of 4, both",
    lambda: make_tracking_engine(
        4, mamba_slots=14, kv_tokens=200, chunked_prefill_size=16, max_running_requests=4,
        mamba_cache_chunk_size=4, mamba_track_interval=4, **AHEAD["both"],
    ),
)  # fmt: skip
WINDOWS_AHEAD = [
    SessionScript(
        f"windows, pages of {page_size}, {name}",
        partial(
            make_window_engine, page_size, kv_tokens=208, swa_full_tokens_ratio=0.5,
            chunked_prefill_size=16, max_running_requests=4, **AHEAD[name],
        ),
        reference=make_window_engine,
    )
    for page_size, name in ((1, "overlap"), (4, "both"))
]  # fmt: skip
UNIFIED_WINDOWS = SessionScript(
    "windows, pages of 4, both, unified tree",
    partial(
        make_window_engine, 4, kv_tokens=208, swa_full_tokens_ratio=0.5,
        chunked_prefill_size=16, max_running_requests=4, cache="unified", **AHEAD["both"],
    ),
    reference=make_window_engine,
)  # fmt: skip


def host_tier(name: str, make: Callable[..., Engine], **sizes: Any) -> SessionScript:
    """Return a script over the unified tree with a host tier; transfers end some steps later."""
    return SessionScript(
        name,
        lambda: make(
            chunked_prefill_size=16, max_running_requests=4, cache="unified",
            hicache=HiCache(ratio=1.5), transfers=ChosenTransfers(cycle((1, 3, 2))), **sizes,
        ),
        reference=make,
    )  # fmt: skip


HOST_TIERS = [
    host_tier("host tier of states, unified tree", make_engine, mamba_slots=5, kv_tokens=90),
    host_tier(
        "host tier of windows, unified tree", make_window_engine, swa_full_tokens_ratio=0.6,
        kv_tokens=100,
    ),
]  # fmt: skip
SCRIPTS = [
    HYBRID,
    PAGED,
    TRACKED,
    *HYBRID_AHEAD,
    *ATTENTION_AHEAD,
    TRACKED_AHEAD,
    UNIFIED,
    UNIFIED_PAGED,
    *WINDOWS_AHEAD,
    UNIFIED_WINDOWS,
    *HOST_TIERS,
]


class SessionRun:
    """Runs the script step by step; a session's next turn starts when the previous one has ended.

    ``said`` is each session's conversation as its client has it; an aborted turn adds nothing.
    ``looks`` returns whether to check every slot after a step.  ``turns_before`` has, for each
    step, the sessions that had a turn when it began, with its stage; ``sessions_before`` also has
    those without a turn.
    """

    def __init__(self, script: SessionScript) -> None:
        self.engine = script.make_engine()
        self.steps = 0
        self.looks: Callable[[], bool] = always
        self._audits = Audits()
        self.turns_before: list[dict[str, str]] = []
        self.sessions_before: list[dict[str, str]] = []
        self.said: dict[str, list[int]] = {name: [] for name in SESSIONS}
        self.ends: dict[str, EventKind] = {}
        self.outputs: dict[str, list[int]] = {}
        self.prompts: dict[str, list[int]] = {}
        self._next = dict.fromkeys(SESSIONS, 0)
        self._turn_of: dict[str, str] = {}
        self._plain = dict(PLAIN)
        for name in SESSIONS:
            self.engine.open_session(name)

    @classmethod
    def again(cls, script: SessionScript, steps: int) -> SessionRun:
        """Repeat the first ``steps`` steps of a run without checks, which have passed before."""
        run = cls(script)
        run.looks = never
        for _ in range(steps):
            run.step()
        run.looks = always
        return run

    @property
    def is_over(self) -> bool:
        to_come = any(self._may_go_on(name) for name in SESSIONS)
        return not to_come and not self._plain and not self.engine.has_work

    def step(self) -> None:
        """Submit what is due, run one step, and check every slot if that is due."""
        stages = stages_of(self.engine, self._turn_of)
        turns = {self._turn_of[rid]: stage for rid, stage in stages.items()}
        self.turns_before.append(turns)
        slots = self.engine.pools.sessions.slots
        idle = {name: "idle, with a slot" if name in slots else "idle" for name in SESSIONS}
        self.sessions_before.append({**idle, **turns})
        for name in SESSIONS:
            if self._may_go_on(name) and name not in self._turn_of.values():
                self._submit_turn(name)
        if self.steps % 3 == 2 and self._plain:
            rid, prompt = self._plain.popitem()
            self.prompts[rid] = prompt
            self.engine.submit(rid, prompt, PARAMS)
        self.steps += 1
        for event in self.engine.step():
            if event.ends_request:
                self._note(event.rid, event.kind, list(event.output_ids))
        if self.looks() and self._audits.are_due():
            assert_nothing_lost(self.engine)

    def run(self, most_steps: int = 300) -> None:
        """Run to the end; then every slot must be free."""
        while not self.is_over:
            assert self.steps < most_steps, "the run does not end"
            self.step()
        for name in SESSIONS:
            self.engine.close_session(name)
        assert_idle_and_clean(self.engine)
        assert self.engine.flush_cache()
        for pool, stats in self.engine.pool_stats().items():
            assert stats.available == stats.total, (pool, stats)

    def _may_go_on(self, name: str) -> bool:
        session = self.engine.scheduler.sessions.get(name)
        if session is None or session.close_on_finish:
            return False
        return self._next[name] < len(TURNS[name])

    def _submit_turn(self, name: str) -> None:
        new = TURNS[name][self._next[name]]
        rid = f"{name}{self._next[name]}"
        self._next[name] += 1
        self._turn_of[rid] = name
        self.prompts[rid] = [*self.said[name], *new]
        self.engine.submit(rid, new, PARAMS, session_id=name)

    def _note(self, rid: str, kind: EventKind, output: list[int]) -> None:
        self.ends[rid], self.outputs[rid] = kind, output
        name = self._turn_of.pop(rid, None)
        if name is not None and kind is EventKind.FINISHED:
            self.said[name] = [*self.prompts[rid], *output]


class ReferenceTokens:
    """Outputs of an engine without reuse, computed once for each prompt and model."""

    def __init__(self) -> None:
        self._known: dict[Callable[..., Engine], dict[tuple[int, ...], list[int]]] = {}

    def check(self, script: SessionScript, run: SessionRun) -> None:
        """Compare every output, even if cut short, with that for the whole conversation."""
        known = self._known.setdefault(script.reference, {})
        for rid, prompt in run.prompts.items():
            if rid not in run.outputs:
                continue
            key = tuple(prompt)
            if key not in known:
                reference = script.reference(cache="chunk", check_level="off")
                known[key] = reference.generate([prompt], PARAMS)[0]
            output = run.outputs[rid]
            assert output == known[key][: len(output)], (rid, prompt)
            assert run.ends[rid] is not EventKind.FINISHED or len(output) == len(known[key])
