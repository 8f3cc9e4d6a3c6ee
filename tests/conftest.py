"""Settings of every test run: threads, environment, Hypothesis profiles, garbage collection."""

from __future__ import annotations

import copy
import functools
import gc
import os
from collections.abc import Generator, Iterator
from dataclasses import replace

# Must be set before numpy and torch are loaded.  Tests share few cores with other work, where a
# second thread waits for a busy core and slows down operations on small matrices.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
# Tests must not depend on variables that a shell or CI service sets for its terminal or for soaks.
_TERMINAL = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"}
for _name in _TERMINAL | {name for name in os.environ if name.startswith("HYBRIDBENCH_")}:
    os.environ.pop(_name, None)

import pytest  # noqa: E402
import typer.main  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from hypothesis.internal.conjecture import providers  # noqa: E402

# Engines take milliseconds to seconds to build and run, so there is no deadline or speed check.
_PATIENT = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
settings.register_profile("dev", parent=_PATIENT, max_examples=25)
settings.register_profile("ci", parent=_PATIENT, max_examples=10, derandomize=True)
settings.register_profile("deep", parent=_PATIENT, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def _user_has_prepared_no_targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands would otherwise count the bytes of what this machine's user has prepared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True)
def _environment_is_given_back() -> Iterator[None]:
    """Restore the environment after each test.

    Commands that run in this process set variables that a later test's children would inherit.  One
    is PYTHONSAFEPATH, which stops a started program from importing modules next to it.
    """
    before = _environment()
    yield
    after = _environment()
    for name in after.keys() - before.keys():
        del os.environb[name]
    for name, value in before.items() - after.items():
        os.environb[name] = value


def _environment() -> dict[bytes, bytes]:
    """The environment as bytes, which costs less than text, without the variable of pytest."""
    return {name: value for name, value in os.environb.items() if name != b"PYTEST_CURRENT_TEST"}


@pytest.fixture(scope="session", autouse=True)
def _files_of_yaml_are_parsed_once() -> Iterator[None]:
    """A profile takes milliseconds to parse, and hundreds of tests read the same few files."""
    from hybridbench.workload import yaml_source

    parsed_once = functools.lru_cache(maxsize=256)(yaml_source.parse_yaml)

    def parse_yaml(text: str, origin: str, what: str = "profile") -> yaml_source.Source:
        source = parsed_once(text, origin, what)
        return replace(source, data=copy.deepcopy(source.data))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_source, "parse_yaml", parse_yaml)
        yield


def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: one worker more than cores, because scenario tests mostly wait."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, run scenarios first, so that other tests compute while they wait.

    Each worker starts with its share of the list; idle workers take tests from the end of it.  The
    order of files is the same for all workers, in whatever order they were collected.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: ("scenarios" not in item.path.parts, item.path))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let every second worker begin with the last file of each directory.

    In a fresh checkout all workers would otherwise compile the same files at the same time.
    """
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if isinstance(collector, pytest.Dir) and int(worker.removeprefix("gw")) % 2:
        report.result.reverse()
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection during test collection, which only adds long-lived objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Freeze the collected tests, so that garbage collections in tests do not traverse them."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Freeze what a test file imported and cached before the next file starts."""
    done = yield
    if nextitem is not None and nextitem.path != item.path:
        _freeze()
    return done


def _freeze() -> None:
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Run Triton kernels in its interpreter, except with ``pytest -m gpu``, which compiles them.

    Triton reads this variable on import, and no conftest imports it.
    """
    if config.option.markexpr != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"
    _build_commands_once(config)
    if settings.get_current_profile_name() == "ci":
        _draw_no_constants_of_the_package(config)


def _draw_no_constants_of_the_package(config: pytest.Config) -> None:
    """Hypothesis draws constants of all modules imported so far, and parses them in each worker.

    That takes seconds, and the examples of a test then depend on the tests before it.  The other
    profiles, which are random anyway, keep these constants.
    """
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    # Until modules are read, there are none; older versions never read any.
    patch.setattr(
        providers, "_get_local_constants", lambda: providers._local_constants, raising=False
    )


def _build_commands_once(config: pytest.Config) -> None:
    """Cache typer's commands, which it rebuilds at every call; that costs more than most tests."""
    built_once = functools.cache(typer.main.get_command)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    for place in ("typer.main.get_command", "typer.testing._get_command"):
        patch.setattr(place, built_once)
