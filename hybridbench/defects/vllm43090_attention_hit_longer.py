"""vllm#43090, #55600, #53142: the KV of a hit is longer than its state.

States are evicted inside the tree while KV stays, so a hit has to end where there is a state.  The
length of the hit was that of the KV, and the request continued with the state of a shorter prefix:
the tokens in between are missing from its state.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch
from hybridbench.defects.truth import Truth
from hybridbench.defects.wrong_answers import answers
from hybridbench.engine.cache.base import CacheableReq, MatchResult
from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree import join
from hybridbench.engine.cache.tree_node import TreeNode

TRUTH = Truth()
_healthy_copy_state = MambaRadixCache._copy_state


def _match(self: MambaRadixCache, key: RadixKey) -> MatchResult:
    """Match as far as there is KV, if there is a state anywhere on the path."""
    path, _, _ = self._walk(key.page_aligned(self.page_size))
    if all(node.mamba_value is None for node in path):
        path = []
    self._touch_path(path)
    indices = join(path)
    node = path[-1] if path else self.root_node
    return MatchResult(indices, node, node, None, len(indices))


def _copy_state(self: MambaRadixCache, req: CacheableReq, node: TreeNode) -> bool:
    """Copy the nearest state; no hit if making room for it evicted the end of the hit."""
    end, skipped = node, 0
    while node.mamba_value is None and node.parent is not None:
        skipped += len(node.key)
        node = node.parent
    lock = self.inc_lock_ref(end)
    copied = _healthy_copy_state(self, req, node)
    self.dec_lock_ref(end, lock.to_dec_params())
    is_hit = copied and self.full_lru_list.in_list(end)
    TRUTH.add("tokens_skipped", skipped if is_hit else 0)
    return is_hit


DEFECT = Defect(
    slug="attention-hit-longer",
    source="vllm#43090",
    symptom="Requests that hit a prefix whose state was evicted skip the tokens since the last "
    "state.",
    profile="chat-churn",
    signature=answers(
        "hit that ends at a node without a state", "the tokens of the node", "tokens_skipped"
    ),
    patches=(
        Patch(MambaRadixCache, "_match", _match, fingerprint="bcbccb07681d"),
        Patch(MambaRadixCache, "_copy_state", _copy_state, fingerprint="6895be9f591d"),
    ),
    harmed="Hybrid models with prefix caching.",
    cure="A hit ends where KV and state both are.",
    truth=TRUTH,
    corrupts=True,
)
