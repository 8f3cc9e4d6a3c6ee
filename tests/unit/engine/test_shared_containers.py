"""Containers held by modules, classes and functions, not by objects of the engine."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from functools import cache, lru_cache
from queue import Queue, SimpleQueue
from types import ModuleType

import pytest
import torch

from hybridbench.engine.containers import SharedContainers
from hybridbench.engine.scheduler import scheduler as module
from hybridbench.engine.scheduler.scheduler import Scheduler

ENTRIES = 120


def found() -> dict[str, int]:
    containers = SharedContainers()
    containers.find()
    return containers.long()


def with_default(rid: int, seen: list[int] = []) -> None:  # noqa: B006 - the fault
    seen.append(rid)


def with_closure() -> Callable[[int], None]:
    seen: set[int] = set()

    def add(rid: int) -> None:
        seen.add(rid)

    return add


def test_a_module_and_a_class_own_what_they_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_seen", list(range(ENTRIES)), raising=False)
    monkeypatch.setattr(Scheduler, "_known", dict.fromkeys(range(ENTRIES)), raising=False)

    after = found()

    assert after["scheduler._seen"] == after["Scheduler._known"] == ENTRIES


def test_a_module_keeps_each_text_of_its_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    warned = {(f"request {rid} was late", UserWarning, 1): True for rid in range(ENTRIES)}
    monkeypatch.setattr(module, "__warningregistry__", warned, raising=False)

    assert found()["scheduler.__warningregistry__"] == ENTRIES


@pytest.mark.parametrize("kind", [SimpleQueue, Queue])
def test_a_queue_that_nobody_empties_counts(
    kind: type[Queue[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = kind()
    monkeypatch.setattr(module, "_kept", kept, raising=False)
    for rid in range(ENTRIES):
        kept.put(rid)

    assert found()["scheduler._kept"] == ENTRIES


@pytest.mark.parametrize("kept", [bytearray(ENTRIES), array("q", [1] * ENTRIES)])
def test_an_array_that_only_grows_counts(
    kept: bytearray | array[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_kept", kept, raising=False)

    assert found()["scheduler._kept"] == ENTRIES


@pytest.mark.parametrize(
    ("function", "name"), [(with_default, "_finish.seen"), (with_closure(), "_finish.seen")]
)
def test_a_function_owns_its_defaults_and_its_closure(
    function: Callable[[int], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scheduler, "_finish", function)
    before = found()
    for rid in range(ENTRIES):
        function(rid)

    assert f"Scheduler.{name}" not in before
    assert found()[f"Scheduler.{name}"] == ENTRIES


def test_only_a_cache_without_a_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"_all": cache(abs), "_few": lru_cache(ENTRIES)(abs)}
    for name, function in kept.items():
        monkeypatch.setattr(module, name, function, raising=False)
        for rid in range(ENTRIES):
            function(rid)

    names = found()

    assert names["scheduler._all (cache)"] == ENTRIES
    assert not any("_few" in name for name in names)


def test_a_function_from_elsewhere_leads_to_its_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    elsewhere = ModuleType("elsewhere")
    code = "kept = []\nclass Table:\n    rows = {}\ndef finish(rid):\n    kept.append(rid)\n"
    exec(compile(code, f"{tmp_path}/elsewhere.py", "exec"), vars(elsewhere))
    monkeypatch.setattr(Scheduler, "_finish", elsewhere.finish)
    vars(elsewhere)["hooked"] = hooked = torch.nn.Identity()
    for rid in range(ENTRIES):
        elsewhere.finish(rid)
        elsewhere.Table.rows[rid] = rid
        hooked.register_forward_hook(lambda *_: None)

    names = found()

    assert names["elsewhere.kept"] == names["Table.rows"] == ENTRIES
    assert names["elsewhere.hooked._forward_hooks"] == ENTRIES


def test_loggers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "logging.root.manager.loggerDict"
    monkeypatch.setattr(logging.root.manager, "loggerDict", {})

    before = found()
    for rid in range(ENTRIES):
        logging.getLogger(f"request-{rid}")

    assert name not in before
    assert found()[name] == ENTRIES
