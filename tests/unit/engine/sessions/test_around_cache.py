from __future__ import annotations

import weakref

from hybridbench.engine.cache.base import BasePrefixCache, InsertParams, MatchPrefixParams
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.sessions.around_cache import CacheAround
from hybridbench.engine.sessions.streaming_session import StreamingSession
from tests.builders import make_engine


def _methods(cls: type) -> set[str]:
    return {name for name, value in vars(cls).items() if callable(value) and name[0] != "_"}


def test_every_method_of_the_interface_is_forwarded_by_name() -> None:
    """A method inherited from the interface would act as if the cache were empty."""
    assert _methods(BasePrefixCache) - _methods(CacheAround) == set()


def test_the_inner_cache_answers_what_no_session_asks() -> None:
    inner = RadixCache.create_simulated()
    around = StreamingSession(inner)

    around.insert(InsertParams(RadixKey([1, 2, 3])))

    assert around.match_prefix(MatchPrefixParams(RadixKey([1, 2, 3, 4]))).prefix_len == 3
    assert (around.evictable_size(), around.node_count()) == (3, 1)
    around.reset()
    assert inner.node_count() == 0
    assert around.root_node is inner.root_node


def test_a_flush_leaves_nobody_with_the_old_root() -> None:
    engine = make_engine()
    old = weakref.ref(engine.pools.tree_cache.root_node)

    assert engine.flush_cache()

    assert old() is None
    assert engine.pools.sessions.root_node is engine.pools.tree_cache.root_node
