"""Names of series: labels written, read back, and put into words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.foundation.labels import labelled, labels_of, unlabelled, whose
from hybridbench.foundation.metrics import MEMORY, declared, label_of, spec_of

KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


@given(st.dictionaries(KEYS, st.text(min_size=1), max_size=4))
def test_labels_are_read_back_as_they_were_written(labels: dict[str, str]) -> None:
    name = labelled("threads", labels)

    assert unlabelled(name) == "threads"
    assert labels_of(name) == labels
    assert labelled("threads", labels_of(name)) == name


def test_a_name_is_the_same_in_whatever_order_labels_come() -> None:
    assert labelled("threads", {"role": "api", "host": "a"}) == 'threads{host="a",role="api"}'
    assert labelled("threads", {"host": "a", "role": "api"}) == 'threads{host="a",role="api"}'
    assert labels_of('threads{role="api", host="a"}') == {"host": "a", "role": "api"}


def test_a_series_without_labels_keeps_its_name() -> None:
    assert labelled(MEMORY, {}) == labelled(MEMORY, {"role": ""}) == MEMORY
    assert labels_of(MEMORY) == {}
    assert whose(MEMORY) == ""


@pytest.mark.parametrize("text", ['a{role="x"', "a{role}", 'a{role="x"}b', 'a{="x"}', "a{role=x}"])
def test_what_are_no_labels_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no labels"):
        labels_of(text)


def test_a_labelled_metric_has_the_declaration_of_its_metric_and_names_its_process() -> None:
    core = labelled(MEMORY, {"role": "EngineCore"})
    ranked = labelled("open_fds", {"role": "Worker", "rank": "1"})

    assert declared(core) is declared(MEMORY)
    assert spec_of('nothing{role="EngineCore"}') is None
    assert label_of(core) == "private memory of EngineCore"
    assert label_of(ranked) == "the number of open files of Worker, rank 1"
    assert declared('container.cache.len{role="Worker"}').name == "container.*.len"
    assert declared("scraped.vllm:request_success_total").name == "scraped.*"
