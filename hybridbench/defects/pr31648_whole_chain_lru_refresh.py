"""sglang#31648: a hit refreshes the states of the whole chain, although it reads only the last.

A request that continues a conversation copies one state, the one after the last turn.  The states
after the earlier turns will hardly be read again, but each hit moves them to the recently used end
together with the last one.  Under pressure, a state that is needed is evicted before one that is
not.  Fewer prompts hit and more tokens are recomputed; memory is flat, and all pools balance.

No hit rate is wrong by itself: how high it could be depends on the traffic and on the pool.  So a
soak cannot find this defect, but `compare` can, against an engine without it that serves the same
traffic.

Released hybrid trees did this for a long time, and this engine does it unless it is configured to
refresh only what was used, as in this defect's profile.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, FoundBy, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.prefill import PrefillAdder
from hybridbench.engine.scheduler.scheduler import Scheduler

TRUTH = Truth()
_healthy_note_admissions = Scheduler._note_admissions


def _refresh_states(self: MambaRadixCache, path: list[TreeNode]) -> None:
    """Before #31648: refresh all states on the path, not only the one that was read."""
    self._make_states_youngest(path)
    TRUTH.add("refreshes")
    needless = sum(node.mamba_value is not None for node in path[:-1])
    TRUTH.add("needless_refreshes", needless)


def _note_admissions(self: Scheduler, adder: PrefillAdder, outcome: StepOutcome) -> None:
    """Note admissions as usual; once states are evicted, also count prompt tokens and hits."""
    if self._pools.tree_cache.events.evict_internal_state:
        fresh = [req for req in adder.can_run_list if req is not self.chunked_req]
        for req in (req for req in fresh if not req.is_retracted):
            TRUTH.add("prompt_tokens", len(req.origin_input_ids))
            TRUTH.add("tokens_hit", len(req.kv.prefix_indices))
    _healthy_note_admissions(self, adder, outcome)


DEFECT = Defect(
    slug="whole-chain-lru-refresh",
    source="sglang#31648",
    symptom="The prefix hit rate of multi-turn chats is far lower than the state pool allows; "
    "memory is flat.",
    profile="deep-multiturn",
    signature=Signature(
        verdicts=("REGRESSION",),
        kinds=("LOWER",),
        subject="hit_rate",
        event="prefix hit",
        rate="all states of the chain are refreshed instead of one",
        harm="tokens_hit",
        per="prompt_tokens",
        counted="other",
        duration_s=240.0,
        quick_s=0.0,
        found_by=FoundBy.COMPARE,
    ),
    patches=(
        Patch(Scheduler, "_note_admissions", _note_admissions, fingerprint="b3283998c96e"),
        Patch(MambaRadixCache, "_refresh_states", _refresh_states, fingerprint="3bb41e036f40"),
    ),
    harmed="Multi-turn traffic on hybrid models under state pressure: hit rate 0.55 instead of "
    "0.80, time to first token 42% longer.",
    cure="Only the state that a hit reads is moved to the most-recently-used end.",
    truth=TRUTH,
)
