"""Where the threads and coroutines of this process wait: names of code, no values.

For a process that has stopped answering.  Only the probe's thread needs to run.
"""

from __future__ import annotations

import _thread
import gc
import os
import sys
import types
from collections import Counter
from collections.abc import Iterable, Iterator

# Frames named for each stack, the innermost ones; stacks named for each process.
_FRAMES = 5
_STACKS = 6
_DEPTH_MAX = 50


def waiting() -> dict[str, object]:
    """The stacks of this process: of the main thread, and how many others have the same one."""
    own = _thread.get_ident()
    main = sys.modules.get("threading")
    first = main.main_thread().ident if main is not None else None
    threads: Counter[str] = Counter()
    lines = []
    for number, frame in sys._current_frames().items():
        said = _said(_callers(frame))
        if number == first:
            lines.append(f"main thread: {said}")
        elif number != own:
            threads[said] += 1
    lines += _counted(threads, "thread")
    lines += _counted(Counter(map(_said, _suspended())), "coroutine")
    return {"stacks": lines}


def _counted(stacks: Counter[str], what: str) -> list[str]:
    return [
        f"{count} {what}{'s' * (count > 1)}: {said}" for said, count in stacks.most_common(_STACKS)
    ]


def _callers(frame: types.FrameType | None) -> Iterator[tuple[types.CodeType, int]]:
    """The code and line of a frame and of those that called it, the innermost first."""
    while frame is not None:
        yield frame.f_code, frame.f_lineno or 0
        frame = frame.f_back


def _suspended() -> Iterator[list[tuple[types.CodeType, int]]]:
    """For each suspended coroutine, and all that it awaits, the code and line of each."""
    kinds = (types.CoroutineType, types.AsyncGeneratorType)
    found = [one for one in gc.get_objects() if type(one) in kinds]
    awaited = {id(_awaits(one)) for one in found}
    for one in found:
        chain: list[tuple[types.CodeType, int]] = []
        inner: object = None if id(one) in awaited or _is_executed(one) else one
        while type(inner) in kinds and len(chain) < _DEPTH_MAX:
            chain[:0] = list(_callers(_frame_of(inner)))
            inner = _awaits(inner)
        if chain:
            yield chain


def _is_executed(one: object) -> bool:
    """Whether the stack of a thread has it."""
    frame = _frame_of(one)
    return frame is not None and frame.f_back is not None


def _frame_of(one: object) -> types.FrameType | None:
    if type(one) is types.CoroutineType:
        return one.cr_frame
    return one.ag_frame if type(one) is types.AsyncGeneratorType else None


def _awaits(one: object) -> object:
    if type(one) is types.CoroutineType:
        return one.cr_await
    return one.ag_await if type(one) is types.AsyncGeneratorType else None


def _said(stack: Iterable[tuple[types.CodeType, int]]) -> str:
    """``wait (queue.py:171) < get (pool.py:30)``: the innermost call first."""
    calls = [f"{code.co_name} ({os.path.basename(code.co_filename)}:{at})" for code, at in stack]
    more = " < ..." if len(calls) > _FRAMES else ""
    return " < ".join(calls[:_FRAMES]) + more
