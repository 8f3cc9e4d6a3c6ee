from __future__ import annotations

from hybridbench.engine.req import FinishKind, Req, ReqKv
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import make_req


def test_a_new_request_holds_nothing() -> None:
    assert make_req().kv.is_empty


def test_any_holding_makes_the_record_not_empty() -> None:
    for kv in (ReqKv(req_pool_idx=1), ReqKv(mamba_pool_idx=1), ReqKv(kv_allocated_len=1)):
        assert not kv.is_empty


def test_the_record_says_what_the_request_itself_gives_back() -> None:
    kv = ReqKv(req_pool_idx=3, kv_committed_len=7, kv_allocated_len=8, cache_protected_len=2)

    assert (kv.uncached_len, kv.held_len(1), kv.held_len(4)) == (6, 6, 6)


def test_one_token_is_never_matched_so_that_there_are_logits() -> None:
    req = make_req(prompt=[1, 2, 3])

    req.init_next_round_input()

    assert list(req.matchable_key().token_ids) == [1, 2]


def test_after_a_retract_the_outputs_are_part_of_what_is_computed() -> None:
    req = make_req(prompt=[1, 2, 3], max_new_tokens=5)
    req.append_token(4)
    req.append_token(5)

    req.init_next_round_input()

    assert req.fill_ids == [1, 2, 3, 4, 5]
    assert req.origin_input_ids == [1, 2, 3]
    assert req.remaining_new_tokens == 3
    assert req.seqlen == 5


def test_it_ends_at_its_length() -> None:
    req = make_req(max_new_tokens=2)

    req.append_token(9)
    before = req.finished
    req.append_token(9)

    assert not before
    assert req.finished_reason is not None
    assert req.finished_reason.kind is FinishKind.LENGTH


def test_it_ends_at_a_stop_token_of_its_own_or_of_the_model() -> None:
    for token in (7, 8):
        req = Req("r", [1], SamplingParams(max_new_tokens=9, stop_token_ids=(7,)), 0, (8,))
        req.append_token(token)
        assert req.finished_reason is not None
        assert req.finished_reason.kind is FinishKind.STOP


def test_ignore_eos_runs_past_every_stop_token() -> None:
    params = SamplingParams(max_new_tokens=3, stop_token_ids=(7,), ignore_eos=True)
    req = Req("r", [1], params, 0, (8,))

    for token in (7, 8):
        req.append_token(token)

    assert not req.finished


def test_forgetting_a_match_drops_the_node_and_its_indices() -> None:
    req = make_req()
    req.kv.cache_protected_len = 3
    req = _after_a_match(req)
    req.extend_input_len = 9

    req.forget_match()

    assert req.kv == ReqKv()
    assert req.mamba_branching_seqlen is None
    assert req.extend_input_len == 0


def _after_a_match(req: Req) -> Req:
    req.mamba_branching_seqlen = 64
    return req


def test_a_request_holds_its_last_page_whole() -> None:
    kv = ReqKv(cache_protected_len=32, kv_committed_len=40, kv_allocated_len=41)

    assert kv.held_len(16) == 16
    kv.kv_allocated_len = 49
    assert kv.held_len(16) == 32
    assert ReqKv().held_len(16) == 0
