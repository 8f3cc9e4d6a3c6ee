from __future__ import annotations

from hybridbench.workload.conversations import ConversationPool
from tests.unit.workload.profiles import base

VOCAB = 4096


def pool(extra: str, **overrides: str) -> ConversationPool:
    profile = base(extra).with_overrides({k.replace("__", "."): v for k, v in overrides.items()})
    return ConversationPool(profile, VOCAB, seed=1)


def test_the_next_prompt_is_all_that_was_said_and_new_user_tokens() -> None:
    chats = pool("conversations: {turns: 3, open: 1}\n")
    first = chats.next_turn()
    chats.end(first, [7, 8, 9])

    second = chats.next_turn()

    assert second.prompt[: len(first.prompt) + 3] == [*first.prompt, 7, 8, 9]
    assert 16 <= len(second.prompt) - len(first.prompt) - 3 <= 64


def test_a_conversation_ends_after_its_turns() -> None:
    chats = pool("conversations: {turns: 2, open: 1}\n")
    first = chats.next_turn()
    chats.end(first, [1])
    second = chats.next_turn()
    chats.end(second, [1])

    assert first.conversation is second.conversation
    assert len(chats) == 0
    assert chats.next_turn().conversation is not first.conversation


def test_a_turn_without_an_answer_leaves_the_conversation_as_it_was() -> None:
    chats = pool("conversations: {turns: 3, open: 1}\n")
    first = chats.next_turn()
    chats.end(first, [1, 2])
    chats.end(chats.next_turn(), [])

    third = chats.next_turn()

    assert first.conversation.history == [*first.prompt, 1, 2]
    assert third.prompt[: len(first.prompt) + 2] == first.conversation.history


def test_no_prompt_with_its_answer_passes_the_context() -> None:
    chats = pool(
        "conversations: {turns: 50, open: 4}\npools: {max_context_len: 300}\n"
        "prompts: {long: 0.2, long_tokens: [90, 110], system_tokens: [16, 40]}\n"
    )

    longest = 0
    for _ in range(2000):
        turn = chats.next_turn()
        longest = max(longest, len(turn.prompt) + turn.max_new_tokens)
        chats.end(turn, [1] * turn.max_new_tokens)

    assert 250 < longest <= 300


def test_system_prompts_are_shared_and_drawn_by_their_rank() -> None:
    chats = pool("prompts: {families: 3, reuse: zipf(2.0), system_tokens: [20, 30]}\n")
    counts = [0, 0, 0]

    for _ in range(600):
        turn = chats.next_turn()
        family = turn.conversation.family
        counts[family] += 1
        system = chats.system_prompt(family)
        assert turn.prompt[: len(system)] == system
        chats.end(turn, [1])

    assert counts[0] > counts[1] > counts[2] > 0


def test_the_first_conversation_on_a_system_prompt_is_that_prompt_alone_when_asked_to() -> None:
    chats = pool("prompts: {families: 4, reuse: uniform, warm: 0.000001}\n")
    seen: set[int] = set()

    for _ in range(200):
        turn = chats.next_turn()
        family = turn.conversation.family
        assert (turn.prompt == chats.system_prompt(family)) == (family not in seen)
        seen.add(family)
        chats.end(turn, [1])


def test_an_edit_asks_again_from_a_random_point_behind_the_system_prompt() -> None:
    chats = pool("conversations: {turns: 400, open: 1, edit: 1.0}\nprompts: {user_tokens: 8}\n")
    previous = chats.next_turn()
    system = len(chats.system_prompt(previous.conversation.family))
    kept = []
    for _ in range(200):
        chats.end(previous, [1] * 4)
        history = previous.conversation.history
        turn = chats.next_turn()
        common = len(turn.prompt) - 8
        assert turn.prompt[:common] == history[:common]
        assert system <= common <= len(history)
        kept.append(common - system)
        ends = previous.conversation.turn_ends
        assert ends == sorted(set(ends))
        assert ends[-1] == len(history)
        previous = turn

    assert len({offset % 12 for offset in kept}) > 6


def test_a_branch_begins_with_the_first_turns_of_another_conversation() -> None:
    # Twelve chats are opened in order, so later ones can branch off those waiting for a turn.
    chats = pool("conversations: {turns: 3, open: 12, branch: 1.0}\n")
    first = chats.next_turn()
    chats.end(first, [5, 6])

    branch = chats.next_turn()

    assert branch.conversation is not first.conversation
    assert branch.prompt[: len(first.prompt) + 2] == [*first.prompt, 5, 6]


def test_no_more_conversations_are_kept_than_open_or_in_flight() -> None:
    chats = pool("conversations: {turns: [1, 9], open: 10, branch: 0.3, edit: 0.3}\n")
    flying = []

    for step in range(5000):
        flying.append(chats.next_turn())
        if len(flying) >= 16:
            chats.end(flying.pop(step % 16), [1, 2, 3] if step % 7 else [])
        assert len(chats) <= 16


def test_a_long_turn_takes_long_user_input_and_a_long_answer_the_most_tokens() -> None:
    chats = pool("prompts: {long_tokens: [200, 210], warm: 1.0}\noutput: {tokens: [1, 9]}\n")

    turn = chats.next_turn(long_input=True, long_output=True)

    system = len(chats.system_prompt(turn.conversation.family))
    assert 200 <= len(turn.prompt) - system <= 210
    assert turn.max_new_tokens == 9
