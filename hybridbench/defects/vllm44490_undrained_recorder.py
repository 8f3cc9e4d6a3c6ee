"""vllm#44490: a list of blocks is always appended to but not always drained.

Each allocated block is recorded for a consumer that only some configurations have; without it the
list is never drained.  One int per block: about 90 bytes per request, 6.0 to 6.57 GiB in twelve
hours at 150 requests a second.  It is the smallest leak of this catalog that did harm in
production, so it tests how small a leak a detector can find.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.kv_events import KvEventRecorder
from hybridbench.engine.cache.tree_node import TreeNode

TRUTH = Truth()


def _stored(self: KvEventRecorder, node: TreeNode) -> None:
    """Before #44490 blocks were recorded whether or not a consumer would drain them."""
    before = len(self.log)
    if self.enabled:
        self._note(node)
    else:
        self.log += self.block_hashes(node)
        TRUTH.add("entries_undrained", len(self.log) - before)
    TRUTH.add("blocks_stored", len(node.key.raw) // self._page_bytes)


DEFECT = Defect(
    slug="undrained-recorder",
    source="vllm#44490",
    symptom="A list grows by one int per KV block: tens of bytes per short request, which takes "
    "hours to show in process memory.",
    profile="classify-short",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("container-grows",),
        subject="kv_events",
        event="KV block stored in the tree",
        rate="exactly 1 entry",
        drivers=("kv_blocks_stored", "prompt_tokens"),
        harm="entries_undrained",
        per="blocks_stored",
        quick_s=45.0,
    ),
    patches=(Patch(KvEventRecorder, "stored", _stored, fingerprint="78ccdcba91e3"),),
    harmed="An attention-only model under short classification requests: +0.57 GiB in 12 h.",
    cure="Blocks are recorded only if a consumer is configured.",
    truth=TRUTH,
)
