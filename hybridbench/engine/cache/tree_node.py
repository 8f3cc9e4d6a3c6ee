"""A node of a prefix tree: a run of tokens, their KV indices, and possibly a recurrent state."""

from __future__ import annotations

import numpy as np

from hybridbench.engine.cache.radix_key import ChildKey, RadixKey
from hybridbench.engine.lineage import Writers
from hybridbench.engine.memory.indices import IntArray

NO_TOKENS: IntArray = np.empty(0, dtype=np.int64)
NO_TOKENS.setflags(write=False)
NO_KEY = RadixKey([])


class TreeNode:
    """A node of a prefix tree.

    A node in the tree is referenced by its parent, its children and its neighbours in its
    lists.  Eviction removes all of these references, but leaves ``parent``, ``key`` and ``value``
    unchanged.  Nothing else may keep an evicted node alive: reference counting must free it.

    Attributes:
        id: number of the node in its cache, never reused; 0 is the root.
        children: by the first page of their key.
        key: the tokens of this node alone, not of the path to it.
        value: KV index of each token, int64, held by TREE.
        mamba_value: state slot after the last token of the key, held by TREE; None in a
            tombstone, whose KV can still be shared by longer prefixes.
        full_lock_ref: requests that read this node's KV; counted on the whole path to the root.
        mamba_lock_ref: those among them that locked this node itself while it had a state.
        last_access_time: a count of accesses, not seconds; unique, and larger is younger.
        state_access_time: the same count at the last use of the state.
        swa_access_time: the count of a unified tree's window list at the last use of the window.
        creation_time: the access count at creation.
        hit_count: inserts that passed through or ended here.
        priority: largest priority of those inserts.
        writers: the request that computed this (in a hybrid tree, the state), then those that it
            built on.
        hash_value: with KV cache events, the chained hash of each page of the key; else None.
        swa_tombstone: in a tree with sliding windows, whether this node has lost its part in the
            window pool; longer prefixes can still share its KV in the full pool.
        swa_lock_ref: requests that read its KV in the window pool.
        host_value: with a host tier, its slots in the host pool, held by TREE; None until it is
            backed up.
        host_ref_counter: readers of these slots: loads, writes to storage, prefetches of
            the following tokens.
        mamba_host_value: its state's slot in the host pool, held by TREE; only with host_value.
        mamba_host_ref_counter: loads that read that slot.
        swa_host_value: its slots in the host's window pool, held by TREE; only with host_value.
        swa_host_ref_counter: loads that read those slots.
        full_prev, full_next, mamba_prev, mamba_next, swa_prev, swa_next: neighbours in the LRU
            lists, towards the young and the old end, or in their rings; None if the node is not in
            the list.
    """

    # __weakref__ so that tests and tools can watch a node being freed without keeping it alive.
    __slots__ = (
        "__weakref__",
        "children",
        "creation_time",
        "full_lock_ref",
        "full_next",
        "full_prev",
        "hash_value",
        "hit_count",
        "host_ref_counter",
        "host_value",
        "id",
        "key",
        "last_access_time",
        "mamba_host_ref_counter",
        "mamba_host_value",
        "mamba_lock_ref",
        "mamba_next",
        "mamba_prev",
        "mamba_value",
        "parent",
        "priority",
        "state_access_time",
        "swa_access_time",
        "swa_host_ref_counter",
        "swa_host_value",
        "swa_lock_ref",
        "swa_next",
        "swa_prev",
        "swa_tombstone",
        "value",
        "writers",
    )

    full_prev: TreeNode
    full_next: TreeNode
    mamba_prev: TreeNode
    mamba_next: TreeNode
    swa_prev: TreeNode
    swa_next: TreeNode

    def __init__(
        self,
        id: int = 0,
        key: RadixKey = NO_KEY,
        value: IntArray = NO_TOKENS,
        parent: TreeNode | None = None,
    ) -> None:
        self.id = id
        self.key = key
        self.value = value
        self.parent = parent
        self.children: dict[ChildKey, TreeNode] = {}
        self.mamba_value: int | None = None
        self.full_lock_ref = 0
        self.mamba_lock_ref = 0
        self.swa_tombstone = False
        self.swa_lock_ref = 0
        self.host_value: IntArray | None = None
        self.host_ref_counter = 0
        self.mamba_host_value: int | None = None
        self.mamba_host_ref_counter = 0
        self.swa_host_value: IntArray | None = None
        self.swa_host_ref_counter = 0
        self.last_access_time = 0
        self.state_access_time = 0
        self.swa_access_time = 0
        self.creation_time = 0
        self.hit_count = 0
        self.priority = 0
        self.writers: Writers = ()
        self.hash_value: list[int] | None = None
        # Typed as nodes because only members of a list are walked; None marks the others.
        self.full_prev = None  # type: ignore[assignment]
        self.full_next = None  # type: ignore[assignment]
        self.mamba_prev = None  # type: ignore[assignment]
        self.mamba_next = None  # type: ignore[assignment]
        self.swa_prev = None  # type: ignore[assignment]
        self.swa_next = None  # type: ignore[assignment]

    @property
    def evicted(self) -> bool:
        """Whether only the host tier has its KV; False for the root, which has none."""
        return len(self.value) < len(self.key)

    def __lt__(self, other: TreeNode) -> bool:
        return self.last_access_time < other.last_access_time

    def __repr__(self) -> str:
        return (
            f"TreeNode(id={self.id}, tokens={len(self.key)}, children={len(self.children)}, "
            f"mamba_value={self.mamba_value}, locks={self.full_lock_ref}/{self.mamba_lock_ref})"
        )


def empty_root() -> TreeNode:
    """A root: no key, KV or state; in no list, and permanently locked against eviction."""
    root = TreeNode()
    root.full_lock_ref = root.mamba_lock_ref = 1
    return root
