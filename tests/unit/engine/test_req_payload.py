"""The hash of a payload replaces the first tokens of its prompt."""

from __future__ import annotations

from hybridbench.engine.engine import Engine
from hybridbench.engine.req import PAYLOAD_TOKENS, Req
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import make_engine, make_req, run_to_idle

PROMPT = list(range(10, 30))
PARAMS = SamplingParams(max_new_tokens=3)


def with_payload(payload: bytes, prompt: list[int]) -> Req:
    req = make_req(prompt=list(prompt))
    req.attach_payload(payload, vocab_size=48)
    return req


def test_equal_payloads_are_equal_tokens_and_others_are_not() -> None:
    one, same, other = (with_payload(p, PROMPT) for p in (b"cat", b"cat", b"dog"))

    assert one.origin_input_ids == same.origin_input_ids
    assert one.origin_input_ids[:PAYLOAD_TOKENS] != other.origin_input_ids[:PAYLOAD_TOKENS]
    assert one.origin_input_ids[PAYLOAD_TOKENS:] == PROMPT[PAYLOAD_TOKENS:]
    assert all(0 <= token < 48 for token in one.origin_input_ids)
    assert one.fill_ids == one.origin_input_ids


def test_a_prompt_shorter_than_the_hash_keeps_its_length() -> None:
    assert len(with_payload(b"cat", [1, 2]).origin_input_ids) == 2


def hit_tokens(engine: Engine, prompt: list[int], payload: bytes) -> int:
    """Return how many prompt tokens a request with ``payload`` reuses."""
    before = engine.counters.prefix_hit_tokens
    rid = f"r{engine.counters.requests_submitted}"
    engine.submit(rid, prompt, PARAMS, payload=payload)
    run_to_idle(engine)
    return engine.counters.prefix_hit_tokens - before


def test_a_prefix_is_shared_only_with_the_same_payload() -> None:
    engine = make_engine()
    hit_tokens(engine, PROMPT, b"cat")

    assert hit_tokens(engine, [*PROMPT, 1, 2], b"dog") == 0
    assert hit_tokens(engine, [*PROMPT, 1, 2], b"") == 0
    assert hit_tokens(engine, [*PROMPT, 1, 2], b"cat") == len(PROMPT)


def test_the_prompt_of_the_caller_is_left_alone() -> None:
    prompt = list(PROMPT)
    engine = make_engine()
    engine.submit("a", prompt, PARAMS, payload=b"cat")
    run_to_idle(engine)

    assert prompt == PROMPT
