"""Memory that observation leaves behind is distinguished from the process's own."""

from __future__ import annotations

from hybridbench.sampling.malloc import malloc_reader
from hybridbench.sampling.observer import ObserverAccount


def test_answers_that_are_remembered_are_on_the_observers_account() -> None:
    account = ObserverAccount(malloc_reader())
    remembered = []

    for _ in range(16):
        account.begin()
        remembered.append(bytes(128 * 1024))
        account.end()

    assert account.held_bytes >= 16 * 128 * 1024
    assert account.held_bytes < 17 * 128 * 1024 * 1.1


def test_what_is_taken_between_two_looks_is_not() -> None:
    account = ObserverAccount(malloc_reader())
    kept = []

    for _ in range(16):
        kept.append(bytes(128 * 1024))
        account.begin()
        account.end()

    assert abs(account.held_bytes) < 64 * 1024


def test_an_answer_that_replaces_the_one_before_leaves_nothing() -> None:
    account = ObserverAccount(malloc_reader())
    answer: dict[str, float] = {}

    for look in range(200):
        account.begin()
        answer = {f"metric-{name}": float(look + name) for name in range(100)}
        account.end()

    assert len(answer) == 100
    # The first answer does not replace another one.
    assert abs(account.held_bytes) < 64 * 1024
