"""Where the threads and coroutines of a program wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from hybridbench.probe.hybridbench_probe import stacks


async def generate(permits: asyncio.Semaphore) -> AsyncIterator[str]:
    await permits.acquire()
    yield "secret"


async def handle(permits: asyncio.Semaphore) -> None:
    async for _ in generate(permits):
        pass


async def taking_permits() -> list[str]:
    permits = asyncio.Semaphore(0)
    tasks = [asyncio.ensure_future(handle(permits)) for _ in range(3)]
    await asyncio.sleep(0)
    found = stacks.waiting()["stacks"]
    for task in tasks:
        task.cancel()
    assert isinstance(found, list)
    return found


def test_equal_stacks_of_threads_and_coroutines_are_counted_without_values() -> None:
    held = threading.Event()
    threads = [threading.Thread(target=held.wait, name="secret") for _ in range(2)]
    for thread in threads:
        thread.start()

    lines = asyncio.run(taking_permits())
    held.set()

    assert "secret" not in "".join(lines)
    assert sum(line.startswith("2 threads: wait (threading.py:") for line in lines) == 1
    permits = [line for line in lines if line.startswith("3 coroutines: acquire (locks.py:")]
    assert [line.partition(" < ")[2] for line in permits] == ["generate (test_stacks.py:13)"]
