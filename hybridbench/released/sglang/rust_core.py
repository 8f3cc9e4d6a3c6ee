"""SGLang's unified tree with a core in Rust: it shows its slots and evictions, not its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from hybridbench.engine.counters import EngineCounters
from hybridbench.released.sglang.trees import Part

UNCOUNTED: Final = frozenset({"evict_cascade", "node_splits"})
"""Events that only the core sees: a parent evicted with its last child, and a node split."""
_CLASS: Final = "RustUnifiedTreeCore"
_STATE: Final = 2  # the component of a node that holds its recurrent state


def rust_core(cache: Any) -> Any:
    """The core of ``cache`` if it is the one in Rust, else None."""
    core = vars(cache).get("tree_core")
    return core if type(core).__name__ == _CLASS else None


def parts(core: Any, window_of: Callable[[Any], Any], pools: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the slots that all its nodes together hold, for each pool in ``pools``.

    The core lists the slots.  Only the number of locked ones is taken from its own counts.
    """
    yield from _split("kv", core.all_values_flatten(), core.full_evictable_size())
    if "swa" in pools:
        resident = core.walk_for_kv_canary(unlocked_only=False, swa_resident_only=True)
        slots = window_of(resident.slot_indices)
        yield from _split("swa", slots[slots > 0], core.swa_evictable_size())
    if "mamba" in pools:
        yield from _split("mamba", core.all_mamba_values_flatten(), core.mamba_evictable_size())


def _split(pool: str, slots: Any, evictable: int) -> Iterator[Part]:
    yield pool, slots[:evictable], False
    yield pool, slots[evictable:], True


class RustCoreWatch:
    """Counts evictions by wrapping the methods that evict, on this instance of the core."""

    def __init__(self, core: Any, counters: EngineCounters, *, has_windows: bool) -> None:
        self._core = core
        self._counters = counters
        self._has_windows = has_windows
        self._states = self._lost = 0
        self.gained = 0
        """Number of nodes that gained a state between the last two looks."""
        self._evict_next, core.evict_device_next_node = core.evict_device_next_node, self._next
        self._evict_leaf, core.evict_device_leaf = core.evict_device_leaf, self._leaf

    def sizes(self) -> Mapping[str, int]:
        """Nothing: nodes cannot be counted."""
        return {}

    def look(self) -> None:
        """Note how many states were gained since the last call."""
        if not self._has_windows:
            states = len(self._core.all_mamba_values_flatten())
            self.gained = max(0, states - self._states + self._lost)
            self._states, self._lost = states, 0

    def _next(self, *arguments: Any, **named: Any) -> Any:
        result = self._evict_next(*arguments, **named)
        if result.made_progress and result.node_id is None:
            if self._has_windows:
                self._counters.swa_tombstones += 1
            else:
                self._counters.tombstones += 1
                self._counters.evict_internal_state += 1
        self._lost += _states(result)
        return result

    def _leaf(self, *arguments: Any, **named: Any) -> Any:
        result = self._evict_leaf(*arguments, **named)
        self._counters.evict_leaf += 1
        self._counters.nodes_evicted += 1
        self._lost += _states(result)
        return result


def _states(result: Any) -> int:
    # The caller frees them as soon as it has the result.
    return sum(map(len, result.device_frees.get(_STATE, ())))
