"""Settings of every test run: one torch thread, and how long Hypothesis may look."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator

# Before numpy and torch are loaded: tests run beside other work on few cores, where a second thread
# waits for a busy core and slows small matrices.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
# What a shell or a CI service sets for its own terminal, or for soaks, is no input of a test.
_TERMINAL = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"}
for _name in _TERMINAL | {name for name in os.environ if name.startswith("HYBRIDBENCH_")}:
    os.environ.pop(_name, None)

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# Engines take milliseconds to seconds to build and run: no deadline, and "too slow" means nothing.
_PATIENT = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
settings.register_profile("dev", parent=_PATIENT, max_examples=25)
settings.register_profile("fast", parent=_PATIENT, max_examples=10, derandomize=True)
settings.register_profile("ci", parent=_PATIENT, max_examples=30, derandomize=True)
settings.register_profile("deep", parent=_PATIENT, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def _environment_is_given_back() -> Iterator[None]:
    """Commands that run in this process set variables that a later test's children would inherit.

    PYTHONSAFEPATH, which is one, keeps a program that a test starts from importing its neighbours.
    """
    before = os.environ.copy()
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: one more than there are cores, as scenario tests wait more than they work."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several workers: scenarios come first, so that the others compute while one of them waits.

    A worker begins with its share of the list, and those that are done take from the end of it.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: "scenarios" not in item.path.parts)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: no collection walks it while it grows."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Thousands of collected tests are no garbage: collections in tests leave them alone."""
    _freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """What a file of tests imported and cached stays: collections in the next leave it alone."""
    done = yield
    if nextitem is not None and nextitem.path != item.path:
        _freeze()
    return done


def _freeze() -> None:
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Triton kernels run in its interpreter, but for ``pytest -m gpu``, which compiles them.

    Triton reads this when it is imported, which no conftest does.
    """
    if config.option.markexpr != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"
