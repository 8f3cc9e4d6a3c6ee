"""Events as records: one reader, which keeps what it cannot read and never fails."""

from __future__ import annotations

import pytest

from hybridbench.records.events import (
    EVENTS,
    Checkpoint,
    Crash,
    Event,
    OtherEvent,
    event_data,
    kind_of,
    read_event,
)
from hybridbench.records.heap import InstanceCount
from hybridbench.records.json_value import JsonValue


def test_a_missing_field_has_its_default_and_one_of_another_type_damages_the_event() -> None:
    gap: dict[str, JsonValue] = {"seconds": "long"}

    damaged = read_event(1.0, "gap", gap)

    assert read_event(1.0, "crash", {}) == Crash("exit", "", (), t_s=1.0)
    assert damaged == OtherEvent("gap", unknown=gap, t_s=1.0)
    assert isinstance(damaged, OtherEvent)
    assert damaged.is_damaged
    assert not OtherEvent("of a plugin").is_damaged


def test_a_table_of_the_wire_is_read_by_its_names() -> None:
    pools: JsonValue = {"kv": {"residual": 3, "free": 2.5}}
    checkpoint = read_event(1.0, "checkpoint", {"pools": pools, "instances": {"Req": {"live": 4}}})

    assert isinstance(checkpoint, Checkpoint)
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


@pytest.mark.parametrize("kind", EVENTS.values(), ids=kind_of)
def test_every_event_is_read_from_its_own_data(kind: type[Event]) -> None:
    event = kind(t_s=2.0)

    again = read_event(2.0, kind_of(event), event_data(event))

    assert again == event
    assert type(again) is kind


def test_an_event_without_a_record_is_kept_as_it_is() -> None:
    assert read_event(1.0, "hiccup", {"a": 1}) == OtherEvent("hiccup", unknown={"a": 1}, t_s=1.0)
