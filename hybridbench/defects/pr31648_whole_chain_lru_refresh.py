"""sglang#31648: a hit makes the states of the whole chain young, although it reads only the last.

A request that continues a conversation copies one state: that after the last turn.  The states
after the earlier turns will hardly be read again, but each hit moves them to the young end with
the last one, and under pressure a state that somebody needs goes before one that nobody will.
Fewer prompts hit and more of them is computed anew; memory is flat, and all pools balance.

Released hybrid trees did this for a long time, and this engine does it unless it is told to refresh
only what was used; the profile of this defect tells it.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.mamba_eviction import MambaTreeEviction
from hybridbench.engine.cache.tree_node import TreeNode

TRUTH = Truth()


def _refresh_states(self: MambaTreeEviction, path: list[TreeNode]) -> None:
    """Before #31648: all states on the path, not only the one that was read."""
    self._make_states_youngest(path)
    TRUTH.add("hits")
    needless = sum(node.mamba_value is not None for node in path[:-1])
    TRUTH.add("needless_refreshes", needless)


DEFECT = Defect(
    slug="whole-chain-lru-refresh",
    source="sglang#31648",
    symptom="The prefix hit rate of multi-turn chats is far lower than the state pool would allow; "
    "memory is flat.",
    profile="deep-multiturn",
    signature=Signature(
        verdicts=("DEGRADED",),
        kinds=("below-threshold",),
        subject="hit_rate",
        event="hit",
        rate="every hit refreshes all states of its chain instead of one",
        harm="needless_refreshes",
        per="hits",
        exact=False,
        duration_s=240.0,
    ),
    patches=(
        Patch(MambaTreeEviction, "_refresh_states", _refresh_states, fingerprint="3bb41e036f40"),
    ),
    harmed="Multi-turn traffic on hybrid models under state pressure: hit rate 0.55 instead of "
    "0.80, time to first token 42 % longer.",
    cure="Only the state that a hit reads is moved to the young end.",
    truth=TRUTH,
)
