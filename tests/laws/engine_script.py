"""Short, deterministic scripted runs that use every kind of allocation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal, TypeAlias
from zlib import crc32

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import (
    HiCache,
    HiCacheStorage,
    HiCacheWritePolicy,
    PrefetchPolicy,
)
from tests.builders import (
    NANO_MODEL,
    Audits,
    assert_nothing_lost,
    make_attention_engine,
    make_engine,
    make_tracking_engine,
    make_window_engine,
)
from tests.drafters import HalfRightDrafter
from tests.host_transfers import ChosenStorageIO, ChosenTransfers

MAX_NEW_TOKENS = 6
# Prompts are submitted in pairs this many steps apart, so that later ones hit earlier ones.
STEPS_BETWEEN = 3


@dataclass(frozen=True)
class Script:
    """Prompts by request id, and the engine that serves them, with barely sufficient pools."""

    name: str
    prompts: dict[str, list[int]]
    make_engine: Callable[[], Engine]
    steps_between: int = STEPS_BETWEEN


def _prompts(system: list[int], fork_at: int) -> dict[str, list[int]]:
    """Return turns over one system prompt, and two prompts that diverge from it at ``fork_at``."""
    return {
        "first": system,
        "turn": [*system, 20, 21, 22],
        "fork": [*system[:fork_at], 30, 31, 32],
        "long": [*system, *range(1, 40)],
        "other": [40, 41, 42, 43],
        "again": [*system, 20, 21, 22, 23],
        "late": [*system[:fork_at], 30, 31, 32, 33, 34],
    }


def hybrid(name: str = "hybrid", **changes: Any) -> Script:
    sizes: dict[str, Any] = {
        "mamba_slots": 5, "kv_tokens": 90, "chunked_prefill_size": 16, "max_running_requests": 3,
    }  # fmt: skip
    prompts = _prompts(list(range(1, 13)), fork_at=8)
    return Script(name, prompts, lambda: make_engine(**sizes, **changes))


def paged(name: str = "pages of 16", **changes: Any) -> Script:
    """Return a script in which most outputs extend into one more page."""
    sizes: dict[str, Any] = {
        "kv_tokens": 112,
        "chunked_prefill_size": 32,
        "max_running_requests": 3,
    }
    prompts = _prompts(list(range(1, 45)), fork_at=20)
    return Script(name, prompts, lambda: make_attention_engine(16, **sizes, **changes))


HYBRID = hybrid()
PAGED = paged()
UNIFIED = hybrid("hybrid, unified tree", cache="unified")
UNIFIED_PAGED = paged("pages of 16, unified tree", cache="unified")
HYBRID_OVERLAP = hybrid("hybrid, overlapped", enable_overlap_schedule=True)
PAGED_OVERLAP = paged("pages of 16, overlapped", enable_overlap_schedule=True)
HYBRID_DRAFTS = hybrid("hybrid, drafts", drafter=HalfRightDrafter(NANO_MODEL.vocab_size))
PAGED_DRAFTS = paged("pages of 16, drafts", drafter=HalfRightDrafter(NANO_MODEL.vocab_size))
# Windows of 8 tokens, with a window pool that barely suffices for two requests.
WINDOWS = Script(
    "windows",
    _prompts(list(range(1, 45)), fork_at=20),
    lambda: make_window_engine(
        kv_tokens=130, swa_full_tokens_ratio=0.5, chunked_prefill_size=16, max_running_requests=3,
        enable_overlap_schedule=True,
    ),
)  # fmt: skip
WINDOWS_PAGED = Script(
    "windows, pages of 4",
    _prompts(list(range(1, 45)), fork_at=20),
    lambda: make_window_engine(
        4, kv_tokens=140, swa_full_tokens_ratio=0.5, chunked_prefill_size=16,
        max_running_requests=3, drafter=HalfRightDrafter(NANO_MODEL.vocab_size),
    ),
)  # fmt: skip
UNIFIED_WINDOWS = Script(
    "windows, pages of 4, unified tree",
    _prompts(list(range(1, 45)), fork_at=20),
    lambda: make_window_engine(
        4, kv_tokens=140, swa_full_tokens_ratio=0.5, chunked_prefill_size=16,
        max_running_requests=3, enable_overlap_schedule=True, cache="unified",
    ),
)  # fmt: skip
# States are saved every few tokens, in prefill and decode, with two buffer slots per request.
TRACKED = Script(
    "track buffers",
    _prompts(list(range(1, 13)), fork_at=8),
    lambda: make_tracking_engine(
        mamba_slots=9, kv_tokens=90, chunked_prefill_size=16, max_running_requests=3,
        mamba_cache_chunk_size=4, mamba_track_interval=3, enable_overlap_schedule=True,
    ),
)  # fmt: skip
# The same in pages, where a buffer's second slot is taken only when needed.
TRACKED_PAGES = Script(
    "lazy track buffers, pages of 4",
    _prompts(list(range(1, 21)), fork_at=10),
    lambda: make_tracking_engine(
        4, mamba_slots=7, kv_tokens=112, chunked_prefill_size=16, max_running_requests=3,
        mamba_cache_chunk_size=4, mamba_track_interval=4, enable_overlap_schedule=True,
        mamba_scheduler_strategy="extra_buffer_lazy",
    ),
)  # fmt: skip
UNIFIED_TRACKED = Script(
    "track buffers, pages of 4, unified tree",
    _prompts(list(range(1, 21)), fork_at=10),
    lambda: make_tracking_engine(
        4, mamba_slots=9, kv_tokens=112, chunked_prefill_size=16, max_running_requests=3,
        mamba_cache_chunk_size=4, mamba_track_interval=4, enable_overlap_schedule=True,
        cache="unified",
    ),
)  # fmt: skip
# States are saved from the middle of verified draft chains.
TRACKED_DRAFTS = Script(
    "track buffers, drafts",
    _prompts(list(range(1, 13)), fork_at=8),
    lambda: make_tracking_engine(
        mamba_slots=8, kv_tokens=100, chunked_prefill_size=16, max_running_requests=3,
        mamba_cache_chunk_size=4, mamba_track_interval=3,
        drafter=HalfRightDrafter(NANO_MODEL.vocab_size),
    ),
)  # fmt: skip


HostTierModel: TypeAlias = Literal["attention", "states", "windows"]
_HOST_TIER_ENGINES: dict[HostTierModel, Callable[..., Engine]] = {
    "attention": make_attention_engine,
    "states": make_tracking_engine,
    "windows": make_window_engine,
}


def host_tier(
    name: str,
    write_policy: HiCacheWritePolicy,
    fails: Callable[[int], bool] = lambda _: False,
    ratio: float = 1.0,
    transfers: type[ChosenTransfers] = ChosenTransfers,
    model: HostTierModel = "attention",
    delays: Sequence[int] = (0, 2, 1),
    **changes: Any,
) -> Script:
    """Return a script of three texts that alternate in a device pool for two of them.

    ``delays`` gives, in a cycle, how many polls each transfer outlasts.

    ``model`` "states" is a hybrid model with track buffers, "windows" one with two KV pools.
    """
    sizes: dict[str, Any] = {
        "kv_tokens": 112, "chunked_prefill_size": 16, "max_running_requests": 3,
    }  # fmt: skip
    one, two, three = ([first, *range(1, 40)] for first in (41, 42, 43))
    prompts = {
        "one": one, "two": two, "three": three,
        "one turn": [*one, 20, 21], "two turn": [*two, 20, 21], "fork": [*one[:20], 30, 31],
        "late": [*one[:20], 30, 32],
    }  # fmt: skip
    make_engine = _HOST_TIER_ENGINES[model]
    if model == "windows":
        sizes |= {"kv_tokens": 96, "swa_full_tokens_ratio": 0.7, "cache": "unified"}
    if model == "states":
        sizes |= {
            "kv_tokens": 96, "mamba_slots": 11,
            "mamba_cache_chunk_size": 4, "mamba_track_interval": 4,
        }  # fmt: skip
    if model != "attention":
        # Parts of a text are sometimes written twice, when a state or a window splits it.
        ratio *= 2
    return Script(
        name,
        prompts,
        lambda: make_engine(
            4,
            hicache=HiCache(ratio=ratio, write_policy=write_policy),
            transfers=transfers(cycle(delays), fails),
            **sizes,
            **changes,
        ),
    )


HOST_TIER = host_tier("host tier", "write_through")
HOST_WRITE_BACK = host_tier(
    "host tier, write back", "write_back", ratio=0.5, enable_overlap_schedule=True
)
HOST_STATES = host_tier("host tier of states", "write_through", model="states")
HOST_STATES_WRITE_BACK = host_tier(
    "host tier of states, write back", "write_back", ratio=0.5, model="states"
)
UNIFIED_HOST = host_tier("host tier, unified tree", "write_through", cache="unified")
UNIFIED_HOST_STATES = host_tier(
    "host tier of states, unified tree", "write_through", model="states", cache="unified"
)
UNIFIED_HOST_STATES_WRITE_BACK = host_tier(
    "host tier of states, unified tree, write back", "write_back", ratio=0.5, model="states",
    cache="unified",
)  # fmt: skip
HOST_WINDOWS = host_tier("host tier of windows", "write_through", model="windows")
HOST_WINDOWS_WRITE_BACK = host_tier(
    "host tier of windows, write back", "write_back", model="windows",
    enable_overlap_schedule=True,
)  # fmt: skip


# In `make test`, laws that change one step of a script are tried only at some steps.  These differ
# between scripts, so that similar scripts cover what one leaves out.
every_stride = pytest.mark.parametrize(
    "stride", [60, pytest.param(1, marks=pytest.mark.slow)], ids=["some steps", "every step"]
)
# The number of steps always tried in each stage; later steps of a stage are much alike.
FIRST_STEPS = 1


def points(
    stages_before: Iterable[Mapping[str, str]], name: str, stride: int
) -> Iterator[tuple[int, str]]:
    """Yield steps of the script ``name``, each with a request to take out there.

    They are the first of every stage and then every ``stride``-th.
    """
    seen: Counter[str] = Counter()
    passed = first_of(name, stride)
    for at, stages in enumerate(stages_before):
        for rid, stage in stages.items():
            seen[stage] += 1
            passed += 1
            if seen[stage] <= FIRST_STEPS or passed % stride == 0:
                yield at, rid


def first_of(name: str, stride: int) -> int:
    """Return the offset, below ``stride``, from which the script ``name`` counts."""
    return crc32(name.encode()) % stride


def stages_of(engine: Engine, rids: Iterable[str]) -> dict[str, str]:
    """Return each live request's stage: queued, prefill or decode."""
    scheduler = engine.scheduler
    stages = {req.rid: "decode" for req in scheduler.running}
    if scheduler.chunked_req is not None:
        stages[scheduler.chunked_req.rid] = "prefill"
    return {rid: stages.get(rid, "queued") for rid in rids}


def always() -> bool:
    return True


def never() -> bool:
    return False


def storage_script(
    name: str, paces: Sequence[int] | None, prefetch_policy: PrefetchPolicy
) -> Script:
    """Return a script of six texts over a host pool for three, so that turns continue from storage.

    ``paces`` gives, in a cycle, how many pages the storage moves between steps; None uses threads.
    """
    texts = [[first, *range(1, 40)] for first in (41, 42, 43, 44, 45, 46)]
    prompts = {f"text {first}": text for first, text in enumerate(texts)}
    prompts |= {f"turn {first}": [*text, 20, 21] for first, text in enumerate(texts)}
    prompts |= {f"fork {first}": [*text[:20], 30, 31] for first, text in enumerate(texts)}
    return Script(
        name,
        prompts,
        lambda: make_attention_engine(
            4,
            kv_tokens=96,
            chunked_prefill_size=16,
            max_running_requests=3,
            hicache=HiCache(ratio=1.3),
            hicache_storage=HiCacheStorage(
                ratio=8.0, prefetch_policy=prefetch_policy, prefetch_threshold=8
            ),
            transfers=ChosenTransfers(cycle((0, 2, 1))),
            storage_io=None if paces is None else ChosenStorageIO(cycle(paces)),
        ),
        steps_between=12,
    )


STORAGE = storage_script("storage", (3, 0, 2), "best_effort")


class ScriptedRun:
    """Runs a script step by step.

    ``stages_before`` has, for each step, the requests that were live when it began, and their
    stages.  ``looks`` returns whether slots are checked at all, as often as ``Audits`` says.
    """

    def __init__(self, script: Script = HYBRID) -> None:
        self._prompts = script.prompts
        self._steps_between = script.steps_between
        self.engine = script.make_engine()
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, EventKind] = {}
        self.reasons: dict[str, str] = {}
        self.steps = 0
        self.stages_before: list[dict[str, str]] = []
        self.looks: Callable[[], bool] = always
        self._audits = Audits()
        self._to_submit = list(script.prompts)

    @classmethod
    def again(cls, script: Script, steps: int) -> ScriptedRun:
        """Repeat the first ``steps`` steps of a run without checks, which have passed before."""
        run = cls(script)
        run.looks = never
        for _ in range(steps):
            run.step()
        run.looks = always
        return run

    @property
    def is_over(self) -> bool:
        return not self._to_submit and not self.engine.has_work

    def step(self) -> None:
        """Submit what is due, run one step, and check every slot if that is due."""
        unsubmitted = set(self._to_submit)
        live = [rid for rid in self._prompts if rid not in unsubmitted and rid not in self.ends]
        self.stages_before.append(stages_of(self.engine, live))
        if self.steps % self._steps_between == 0:
            for rid in self._to_submit[:2]:
                params = SamplingParams(max_new_tokens=MAX_NEW_TOKENS)
                self.engine.submit(rid, self._prompts[rid], params)
            del self._to_submit[:2]
        self.steps += 1
        for event in self.engine.step():
            self._note(event)
        if self.looks() and self._audits.are_due():
            assert_nothing_lost(self.engine)

    def run(self, most_steps: int = 400) -> None:
        """Run to the end."""
        while not self.is_over:
            assert self.steps < most_steps, "the run does not end"
            self.step()

    def _note(self, event: EngineEvent) -> None:
        if event.ends_request:
            self.ends[event.rid] = event.kind
            self.outputs[event.rid] = list(event.output_ids)
            self.reasons[event.rid] = event.reason
