"""Random traffic with sessions: turns that append, closes and aborts at any moment, time-outs.

Plain requests run alongside, as in every program.  The client keeps its own copy of each
conversation: the oracle gets all of it as a prompt, while the engine only ever gets the new tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.foundation.clock import FakeClock
from tests.builders import assert_idle_and_clean
from tests.engine_programs import EngineProgram

MOST_SESSIONS = 5
TIMEOUT_S = 20.0


@dataclass
class Client:
    """One session as its client tracks it."""

    said: list[int] = field(default_factory=list)
    turn: str | None = None
    closing: bool = False


class SessionProgram(EngineProgram):
    """``EngineProgram`` with sessions; every step advances the engine's ``clock``."""

    def __init__(
        self, engine: Engine, rng: random.Random, clock: FakeClock, longest_prompt: int = 60
    ) -> None:
        super().__init__(engine, rng, longest_prompt=longest_prompt)
        self.clock = clock
        self.sessions: dict[str, Client] = {}
        self._opened = 0
        self._turns: dict[str, Client] = {}

    def open(self) -> None:
        """Open a session; half of them can time out."""
        name = f"s{self._opened}"
        self._opened += 1
        timeout_s = TIMEOUT_S if self.rng.random() < 0.5 else None
        assert self.engine.open_session(name, timeout_s=timeout_s)
        assert not self.engine.open_session(name)
        self.sessions[name] = Client()

    def close(self) -> None:
        """Close a random session, idle or in the middle of a turn."""
        if not self.sessions:
            return
        name = self.rng.choice(sorted(self.sessions))
        assert self.engine.close_session(name)
        if self.sessions[name].turn is None:
            del self.sessions[name]
        else:
            self.sessions[name].closing = True

    def take_turn(self) -> None:
        """Start a turn of a random session; the engine must refuse it if the session has one."""
        if not self.sessions:
            return
        name = self.rng.choice(sorted(self.sessions))
        client = self.sessions[name]
        new = self._tokens(self.rng.randint(0 if client.said else 1, 12))
        outputs = self.rng.randint(1, 10)
        prompt = [*client.said, *new]
        if len(prompt) > self._longest_prompt:
            return
        if client.turn is not None or client.closing:
            rejected = self.engine.counters.requests_rejected
            self.engine.submit(f"refused{rejected}", new, self._params(outputs), session_id=name)
            assert self.engine.counters.requests_rejected == rejected + 1
            return
        client.turn = self._send(prompt, new, outputs, name)
        self._turns[client.turn] = client

    def step(self) -> None:
        self.clock.advance(1.0)
        super().step()
        # The engine removes a timed-out session without an event.
        for name in [n for n in self.sessions if n not in self.engine.scheduler.sessions]:
            del self.sessions[name]

    def abort(self) -> None:
        """Abort or disconnect; a disconnect yields no event, so its client continues at once."""
        super().abort()
        for rid in [rid for rid in self._turns if rid in self.disconnected]:
            client = self._turns.pop(rid)
            # The turn ends only in the next step.
            self.step()
            client.turn = None

    def finish(self) -> None:
        """Run until all requests end, close all sessions, and check that every slot is free."""
        for _ in range(5000):
            if not self.engine.has_work:
                break
            self.step()
        assert self.live == [], "a request never ended"
        for name in list(self.sessions):
            assert self.engine.close_session(name)
        self.sessions.clear()
        assert len(self.engine.scheduler.sessions) == 0
        assert_idle_and_clean(self.engine)
        assert all(stats.session_held == 0 for stats in self.engine.pool_stats().values())
        assert self.engine.flush_cache()
        for pool, stats in self.engine.pool_stats().items():
            assert stats.available == stats.total, (pool, stats)

    def run(
        self,
        actions: int,
        *,
        abort_share: float = 0.05,
        flush_share: float = 0.004,
        flood_share: float = 0.01,
        push_back_share: float = 0.0,
    ) -> None:
        """Perform ``actions`` random actions, then ``finish``.

        Turns are the last to be retracted for lack of room, which hardly ever happens in a program;
        therefore ``push_back_share`` of the actions retract all running requests.
        """
        del flush_share, flood_share
        rng = self.rng
        for _ in range(actions):
            choice = rng.random()
            if choice < abort_share:
                self.abort()
            elif choice < 0.08:
                self.close()
            elif choice < 0.14 and len(self.sessions) < MOST_SESSIONS:
                self.open()
            elif choice < 0.30:
                self.take_turn()
            elif choice < 0.38 and len(self.live) < 8:
                self.submit()
            elif choice >= 1.0 - push_back_share:
                self.engine.pause_generation("retract")
                self.engine.continue_generation()
            else:
                self.step()
        self.finish()

    def _note(self, event: EngineEvent) -> None:
        if event.rid.startswith("refused"):
            assert event.kind is EventKind.REJECTED
            return
        super()._note(event)
        client = self._turns.pop(event.rid, None) if event.ends_request else None
        if client is None:
            return
        client.turn = None
        if event.kind is EventKind.FINISHED:
            client.said = [*self.sent[event.rid].prompt, *event.output_ids]
