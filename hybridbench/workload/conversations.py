"""Active conversations: each keeps its tokens, and its next prompt is the history plus new tokens.

Memory is bounded by ``open`` conversations and those in flight, none longer than the context.
Times are seconds of traffic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hybridbench.workload.client_sessions import ClientSession, SessionPlan, Waiting
from hybridbench.workload.profile import Profile
from hybridbench.workload.rng_streams import TokenSource, Zipf, draw_tokens, stream, token_block


@dataclass(slots=True, eq=False)
class Conversation:
    """A chain of turns.  ``turn_ends`` are the lengths of the history after each turn."""

    family: int
    history: list[int]
    turns_left: int
    turn_ends: list[int] = field(default_factory=list)
    session: ClientSession | None = None
    namespace: int = 0

    def extend(self, prompt: list[int], output: list[int]) -> None:
        """Append a turn that was answered with ``output``."""
        self.history = prompt + output
        # Going back to an earlier point invalidated later turn ends.
        self.turn_ends = [end for end in self.turn_ends if end <= len(prompt)]
        self.turn_ends.append(len(self.history))


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt to send, and the conversation it belongs to until ``ConversationPool.end``.

    The conversation's session already holds the first ``said`` tokens of the prompt.
    """

    conversation: Conversation
    prompt: list[int]
    max_new_tokens: int
    said: int = 0

    @property
    def is_last(self) -> bool:
        """Whether the conversation ends after it."""
        return self.conversation.turns_left <= 1


class ConversationPool:
    """All conversations of a workload: waiting for a next turn, or being answered."""

    def __init__(self, profile: Profile, vocab_size: int, seed: int) -> None:
        """Create an empty pool; ``seed`` determines every draw."""
        self._prompts = profile.prompts
        self._settings = profile.conversations
        self._output = profile.output.tokens
        self._context_len = profile.pools.max_context_len
        self._vocab_size = vocab_size
        self._seed = seed
        self._random = stream(seed, "conversations")
        self._user_tokens = TokenSource(seed, vocab_size, "user")
        self._families = Zipf(self._prompts.families, self._prompts.reuse)
        self._system_prompts: dict[int, list[int]] = {}
        self._begun = 0
        self._idle: list[Conversation] = []
        self._busy = 0
        self._sessions = SessionPlan(profile.sessions, seed)
        self._thinking: Waiting[Conversation] = Waiting()
        self._held: Waiting[ClientSession] = Waiting()  # last turn done, not closed yet

    def __len__(self) -> int:
        return len(self._idle) + self._busy + len(self._thinking) + len(self._held)

    def ready_s(self, time_s: float) -> float:
        """Return when a next turn is available: ``time_s``, or when a client or session is due."""
        self._idle += self._thinking.due(time_s)
        times_s = [s for s in (self._thinking.next_s, self._held.next_s) if s is not None]
        if self._idle or len(self) < self._settings.open or not times_s:
            return time_s
        return max(time_s, min(times_s))

    def sessions_to_close(self, time_s: float) -> list[str]:
        """Remove and return the sessions that are due to be closed."""
        return [session.session_id for session in self._held.due(time_s) if session.is_open]

    def next_close_s(self) -> float | None:
        """Return when the next session is to be closed, or None."""
        return self._held.next_s

    def close_sessions(self) -> list[str]:
        """Remove and return all sessions that are not being answered; their conversations end."""
        idle = [*self._idle, *self._thinking.due(None)]
        self._idle = [conversation for conversation in idle if conversation.session is None]
        ended = [conversation.session for conversation in idle if conversation.session is not None]
        ended += self._held.due(None)
        return [session.session_id for session in ended if session.is_open]

    def next_turn(self, *, long_input: bool = False, long_output: bool = False) -> Turn:
        """Take a conversation and create its next prompt; the conversation is taken until ``end``.

        ``long_input`` requests user tokens that take several prefill steps, ``long_output`` the
        profile's longest answer.
        """
        output = self._output.high if long_output else draw_tokens(self._random, self._output)
        long_input = self._random.random() < self._prompts.long or long_input
        turn = None
        if len(self) >= self._settings.open and self._idle:
            turn = self._continued(self._take_idle(), output, long_input)
        self._busy += 1
        return turn or self._opened(output, long_input)

    def end(self, turn: Turn, output_ids: list[int], time_s: float = 0.0) -> None:
        """End the turn; an answer becomes part of the conversation."""
        conversation = turn.conversation
        self._busy -= 1
        conversation.turns_left -= 1
        if output_ids:
            conversation.extend(turn.prompt, output_ids)
        session = conversation.session
        if session is None:
            if conversation.turns_left > 0:
                self._idle.append(conversation)
        elif not session.is_open:
            return
        elif conversation.turns_left > 0:
            self._thinking.add(time_s + self._sessions.think_s(), conversation)
        elif not session.abandoned:
            self._held.add(time_s + self._sessions.hold_s(), session)

    def system_prompt(self, family: int) -> list[int]:
        """Return the shared first tokens of a family; their length depends on its seed."""
        tokens = self._system_prompts.get(family)
        if tokens is None:
            random = stream(self._seed, "system length", family)
            length = draw_tokens(random, self._prompts.system_tokens)
            tokens = token_block(self._seed, self._vocab_size, length, "system", family)
            self._system_prompts[family] = tokens
        return tokens

    def _take_idle(self) -> Conversation:
        # Move the last one into the gap: O(1), and order is irrelevant to a uniform draw.
        index = self._random.randrange(len(self._idle))
        conversation = self._idle[index]
        self._idle[index] = self._idle[-1]
        self._idle.pop()
        return conversation

    def _continued(self, conversation: Conversation, output: int, long_input: bool) -> Turn | None:
        """Return the next turn; None if the session is closed, or the context full: then the
        conversation ends.
        """
        history = conversation.history
        session = conversation.session
        if session is not None and conversation.turn_ends and not session.is_open:
            return None
        may_go_back = session is None and bool(conversation.turn_ends)
        if may_go_back and self._random.random() < self._settings.edit:
            # Anywhere after the system prompt: a point inside a turn splits a node.
            system = len(self.system_prompt(conversation.family))
            history = history[: self._random.randint(system, conversation.turn_ends[-1])]
        room = self._context_len - len(history) - output
        user = self._user_length(long_input)
        if user > room:
            user = draw_tokens(self._random, self._prompts.user_tokens)
        if user > room:
            if session is not None:
                # The session ends earlier than planned, and is closed like any other.
                self._held.add(0.0, session)
            return None
        # A session whose first turn failed holds nothing, not even the system prompt.
        said = len(history) if session is not None and conversation.turn_ends else 0
        return Turn(conversation, history + self._user_tokens.take(user), output, said)

    def _opened(self, output: int, long_input: bool) -> Turn:
        turns = draw_tokens(self._random, self._settings.turns)
        session = self._sessions.draw()
        if session is None and self._idle and self._random.random() < self._settings.branch:
            branch = self._branched(turns)
            turn = self._continued(branch, output, long_input) if branch is not None else None
            if turn is not None:
                return turn
        family = self._families.draw(self._random)
        warm = not long_input and self._is_warm(family)
        system = self.system_prompt(family)
        namespace = self._begun % self._prompts.namespaces
        self._begun += 1
        conversation = Conversation(family, system, turns, session=session, namespace=namespace)
        if warm:
            return Turn(conversation, system, output)
        user = self._user_tokens.take(self._user_length(long_input))
        return Turn(conversation, system + user, output)

    def _is_warm(self, family: int) -> bool:
        if not self._prompts.warm:
            return False
        return family not in self._system_prompts or self._random.random() < self._prompts.warm

    def _branched(self, turns: int) -> Conversation | None:
        other = self._idle[self._random.randrange(len(self._idle))]
        if not other.turn_ends:
            return None
        end = self._random.choice(other.turn_ends)
        return Conversation(
            other.family, other.history[:end], turns, [end], namespace=other.namespace
        )

    def _user_length(self, long_input: bool) -> int:
        tokens = self._prompts.long_tokens if long_input else self._prompts.user_tokens
        return draw_tokens(self._random, tokens)
