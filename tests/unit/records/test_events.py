"""Events as records: one reader, and what older versions wrote is defaulted, never an error."""

from __future__ import annotations

import pytest

from hybridbench.records.events import (
    Checkpoint,
    Crash,
    Event,
    Gap,
    OtherEvent,
    Phase,
    event_data,
    kind_of,
    read_event,
)
from hybridbench.records.heap import InstanceCount
from hybridbench.records.json_value import JsonValue


def test_a_missing_field_and_one_of_another_type_have_their_defaults() -> None:
    assert read_event(1.0, "crash", {}) == Crash("exit", "", (), t_s=1.0)
    assert read_event(1.0, "gap", {"seconds": "long"}) == Gap(0.0, t_s=1.0)
    assert read_event(1.0, "phase", {"phase": "warmup"}) == Phase("", "warmup", t_s=1.0)


def test_of_a_table_the_values_that_can_be_read_are_kept() -> None:
    pools: JsonValue = {"kv": {"residual": 3, "total": None, "free": 2.5}, "mamba": 7}
    checkpoint = read_event(1.0, "checkpoint", {"pools": pools, "instances": {"Req": {"live": 4}}})

    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.pools == {"kv": {"residual": 3, "free": 2.5}}
    assert checkpoint.pool("kv", "residual") == 3
    assert checkpoint.pool("mamba", "residual") == 0
    assert checkpoint.instances == {"Req": InstanceCount(live=4)}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("engine_log", {"text": "leak!", "count": 3, "level": "error"}),
        ("of a plugin", {"text": "its own", "t_s": 7.5}),
        ("interrupted", {"signal": "SIGINT"}),
    ],
)
def test_what_is_read_is_stored_again_with_the_keys_of_a_later_version(
    kind: str, data: dict[str, JsonValue]
) -> None:
    event = read_event(1.0, kind, data)

    assert (kind_of(event), event.t_s, event_data(event)) == (kind, 1.0, data)


@pytest.mark.parametrize(
    "kind", [kind for kind in Event.__subclasses__() if kind is not OtherEvent], ids=kind_of
)
def test_every_event_is_read_from_its_own_data(kind: type[Event]) -> None:
    event = kind(t_s=2.0)

    again = read_event(2.0, kind_of(event), event_data(event))

    assert again == event
    assert type(again) is kind


def test_an_event_without_a_record_is_kept_as_it_is() -> None:
    assert read_event(1.0, "hiccup", {"a": 1}) == OtherEvent("hiccup", unknown={"a": 1}, t_s=1.0)
