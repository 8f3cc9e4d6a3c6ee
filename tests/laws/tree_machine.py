"""The rules that all prefix-tree machines share."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hybridbench.engine.cache.base import EvictParams
from tests.laws.tree_world import TreeWorld
from tests.unit.engine.cache.trees import TreeReq, prefixes

# Most requests, and most bare locks, at a time: more would hold a tiny pool entirely.
MANY = 3
# Two tokens and short prompts make shared prefixes, splits and exact repeats likely.
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=12)


class TreeMachine(RuleBasedStateMachine):
    """Subclasses make the world in an ``initialize`` rule."""

    world: TreeWorld | None = None
    unit = 1  # how often each drawn token is repeated

    def a_world(self) -> TreeWorld:
        assert self.world is not None
        return self.world

    def a_request(self, data: st.DataObject) -> TreeReq:
        requests = self.a_world().requests
        return requests[data.draw(st.integers(0, len(requests) - 1))]

    @precondition(lambda self: len(self.world.requests) < MANY)
    @rule(ids=PROMPTS)
    def start(self, ids: list[int]) -> None:
        self.a_world().start([token for token in ids for _ in range(self.unit)])

    @rule(ids=PROMPTS, chunk=st.integers(1, 12))
    def turn(self, ids: list[int], chunk: int) -> None:
        """Run a request from start to finish, in chunks."""
        world = self.a_world()
        tokens = [token for token in ids for _ in range(self.unit)]
        if not world.start(tokens):
            return
        req = world.requests[-1]
        while (left := len(tokens) - req.kv.kv_committed_len) > 0:
            if not world.compute(req, min(chunk * self.unit, left)):
                break
            world.share(req, chunked=left > chunk * self.unit)
        world.finish(req, is_insert=True)

    @rule(data=st.data(), more=PROMPTS)
    def next_turn(self, data: st.DataObject, more: list[int]) -> None:
        """Continue a conversation from a prefix in the tree."""
        known = sorted(prefixes(self.a_world().tree.cache))
        if known:
            ids = known[data.draw(st.integers(0, len(known) - 1))]
            self.turn([*ids[:: self.unit], *more[:4]], chunk=12)

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data(), count=st.integers(1, 6))
    def compute(self, data: st.DataObject, count: int) -> None:
        self.a_world().compute(self.a_request(data), count)

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data(), chunked=st.booleans())
    def share(self, data: st.DataObject, chunked: bool) -> None:
        self.a_world().share(self.a_request(data), chunked)

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data(), is_insert=st.booleans())
    def finish(self, data: st.DataObject, is_insert: bool) -> None:
        self.a_world().finish(self.a_request(data), is_insert)

    @rule(num_tokens=st.integers(1, 3))
    def evict_tokens(self, num_tokens: int) -> None:
        self.a_world().evict(EvictParams(num_tokens=num_tokens))

    @rule(mamba_num=st.integers(1, 2))
    def evict_states(self, mamba_num: int) -> None:
        self.a_world().evict(EvictParams(mamba_num=mamba_num))

    @rule(num_tokens=st.integers(0, 12), mamba_num=st.integers(0, 3))
    def evict_both(self, num_tokens: int, mamba_num: int) -> None:
        self.a_world().evict(EvictParams(num_tokens, mamba_num))

    @precondition(lambda self: len(self.world.locked) < MANY)
    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        world = self.a_world()
        nodes = world.lockable()
        if nodes:
            world.lock(nodes[data.draw(st.integers(0, len(nodes) - 1))])

    @precondition(lambda self: self.world.locked)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        world = self.a_world()
        world.unlock(data.draw(st.integers(0, len(world.locked) - 1)))

    @invariant()
    def the_laws_hold(self) -> None:
        if self.world is not None:
            self.world.check_laws()

    def teardown(self) -> None:
        """End all requests; then nothing may be held, and the whole tree can be evicted."""
        if self.world is None:
            return
        world = self.world
        while world.locked:
            world.unlock(0)
        for req in list(world.requests):
            world.finish(req, is_insert=False)
        assert world.tree.cache.protected_size() == 0
        assert world.tree.cache.mamba_protected_size() == 0
        assert world.tree.cache.swa_protected_size() == 0
        world.evict(EvictParams(10**6, 10**6))
        world.check_laws()
        assert world.tree.cache.node_count() == 0
        assert (
            world.tree.kv.full_available_size() == world.tree.kv.num_pages * world.tree.kv.page_size
        )
