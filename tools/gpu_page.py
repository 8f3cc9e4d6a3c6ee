"""Run this checkout on a CUDA device and write one page of results: ``make gpu``.

Needs only the standard library to start, so that it runs on a bare machine with PyTorch, Triton and
no network; wheels of other missing packages can be given.  The page is written after each step, so
that it has all finished steps however the script ends.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.gpu_machine import commit, driver, environment_of, install, machine_facts
from tools.gpu_steps import GRACE_S, ROOT, Command, Ended, Result, Step, run_step

PAGES = ROOT / "docs" / "explanation" / "gpu-results"
# The soaks below replace tests/scenarios/test_gpu.py, which takes more than six minutes.
TESTS = (
    "tests/unit/engine/kernels",
    "tests/unit/engine/test_cuda_graph_runner.py",
    "tests/unit/engine/memory/test_transfers.py",
    "tests/unit/engine/models/test_qwen3_next.py",
)
TESTS_OF_TIMES = ("tests/unit/benchmarks/test_kernels.py",)
"""Tests that run alone on the device, because they compare times."""
SOAK = ("-m", "hybridbench", "soak", "--device", "cuda", "--dtype", "bfloat16")
LENGTH = ("--duration", "3m", "--extend", "0", "--ui", "none")
RATES = {"device_allocated_bytes": "device memory", "rss_anon_swap_bytes": "private memory"}


def plan(scratch: Path) -> tuple[Step, ...]:
    """The steps in order of execution; soaks and timings never run at the same time."""
    workers = str(min(8, os.cpu_count() or 1))
    pytest = ["-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider"]
    # With xdist, pytest-benchmark warns, and warnings are errors here.
    pytest += ["-p", "no:benchmark", "--basetemp", str(scratch / "pytest")]
    bench = ("-m", "benchmarks")
    tests = Command("pytest", (*pytest, "-n", workers, *TESTS), " passed")
    times = Command("pytest-times", (*pytest, *TESTS_OF_TIMES), " passed")
    kernels = Command("bench-kernels", (*bench, "kernels", "--device", "cuda"), "overlap hides")
    profiler = ("-m", "tools.step_profile", "--device", "cuda")
    engine = Command("bench-engine", (*bench, "engine", "--rounds", "5"), "same tokens")
    return (
        Step("GPU tests", 30, 90, (tests,), _tests),
        Step("GPU tests of times", 10, 40, (times,), _tests),
        Step("Three soaks at once", 220, 250, tuple(_soaks(scratch / "soaks")), _verdicts),
        Step("bench kernels", 20, 110, (kernels,), _text),
        Step("Profiler", 15, 45, (Command("profiler", profiler, "on the device"),), _text),
        Step("bench engine (on the processor)", 15, 60, (engine,), _text),
    )


def _soaks(store: Path) -> Iterator[Command]:
    def soak(name: str, verdict: str, *arguments: str) -> Command:
        folder = store / name
        options = (*arguments, *LENGTH, "--store", str(folder))
        return Command(name, (*SOAK, *options), verdict, folder)

    tiny = ("--model", "qwen3-next-tiny", "--defect")
    yield soak("healthy", "CLEAN", "--model", "qwen3-next-1b")
    yield soak("lru-reference-cycle", "LEAK", *tiny, "lru-reference-cycle")
    yield soak("mamba-adder-reject", "LEAK", *tiny, "mamba-adder-reject")


def page(header: Mapping[str, str], results: Sequence[Result], date: str) -> str:
    """The page in Markdown."""
    lines = [
        f"# {header.get('card', 'GPU')}, {date}",
        "",
        f"<!-- run: {date}, needs a CUDA device -->",
        "```sh",
        "make gpu",
        "```",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in header.items()),
        "",
        "| step | result | seconds |",
        "|---|---|---|",
        *(_outcome(result) for result in results),
    ]
    for result in results:
        if result.ended:
            lines += ["", f"## {result.step.title}", ""]
            lines += result.step.show(result.ended)
            for ended in result.ended:
                lines += _complaint(ended)
    return "\n".join(lines) + "\n"


def _outcome(result: Result) -> str:
    if not result.ended:
        return f"| {result.step.title} | not run: {result.reason} | |"
    failures = [f"{e.command.name}: {e.failure}" for e in result.ended if e.failure]
    said = f"FAILED: {'; '.join(failures)}" if failures else "as expected"
    return f"| {result.step.title} | {said} | {max(e.took_s for e in result.ended):.0f} |"


def _complaint(ended: Ended) -> Iterator[str]:
    """Yield the last output of a failed command, unless it has a verdict."""
    last = (ended.errors or ended.output).strip().splitlines()[-15:]
    if ended.failure and last and ended.verdict is None:
        yield from ("", f"{ended.command.name}, {ended.failure}:", "", "```text")
        yield from (_plain(line)[:160] for line in last)
        yield "```"


def _text(ended: Sequence[Ended]) -> Iterator[str]:
    for each in ended:
        if each.output.strip():
            yield from ("```text", *map(_plain, each.output.strip().splitlines()), "```")


def _tests(ended: Sequence[Ended]) -> Iterator[str]:
    """Yield the tests that did not pass, and pytest's summary."""
    for each in ended:
        said = [_plain(line) for line in each.output.strip().splitlines()]
        named = [line for line in said if re.match(r"FAILED|ERROR|SKIPPED", line)]
        yield from ("```text", *named, *said[-1:], "```")


def _verdicts(ended: Sequence[Ended]) -> Iterator[str]:
    yield f"| soak | verdict | exit code | {' | '.join(RATES.values())} | headline |"
    yield f"|{'---|' * (len(RATES) + 4)}"
    for each in ended:
        verdict = each.verdict or {"verdict": "none", "metrics": [], "headline": ""}
        exit_code = "stopped" if each.exit_code is None else each.exit_code
        rates = " | ".join(_growth(verdict, metric) for metric in RATES)
        yield (
            f"| {each.command.name} | {verdict['verdict']} | {exit_code} | {rates} "
            f"| {_cell(verdict['headline'])} |"
        )
    yield ""
    yield from ("```text", *(_shown(each.command) for each in ended), "```")


def _growth(verdict: Mapping[str, Any], metric: str) -> str:
    """Return the 95% confidence interval of the metric's hourly growth."""
    for result in verdict["metrics"]:
        if result["metric"] == metric and result.get("rate_per_hour"):
            rate = result["rate_per_hour"]
            lower, upper = (f"{rate[end] / 2**20:,.2f}" for end in ("lower", "upper"))
            return f"{lower} to {upper} MiB/h"
    return "not judged"


def _shown(command: Command) -> str:
    return _plain(shlex.join(["python", *command.arguments]))


def _cell(text: str) -> str:
    return " ".join(_plain(text).split()).replace("|", "\\|")


def _plain(text: str) -> str:
    """Return ``text`` without paths of this machine."""
    home = str(Path.home())
    text = text.replace(f"{ROOT}/", "").replace(tempfile.gettempdir(), "TMP")
    # A user without a home directory gets the root directory, which must not be replaced.
    text = text if home == "/" else text.replace(home, "~")
    return text.replace("```", "'''")


def file_name(card: str, date: str) -> str:
    """The page's file name, such as ``2026-11-26-nvidia-h200.md``."""
    return f"{date}-{'-'.join(re.findall('[a-z0-9]+', card.lower()))}.md"


def examples(steps: Sequence[Step]) -> list[Result]:
    """Return made-up results of all kinds: the first step fails, the last has no time left."""
    failed = Ended(steps[0].commands[0], 1, 2.0, "FAILED tests/made_up.py\n1 failed in 2s")
    last = Result(steps[-1], reason=no_time(steps[-1], 3.0))
    right = [Result(step, tuple(map(_example, step.commands))) for step in steps[1:-1]]
    return [Result(steps[0], (failed,)), *right, last]


def _example(command: Command) -> Ended:
    rate = {"lower": -(2.0**19), "upper": 2.0**20}
    metrics = [{"metric": metric, "rate_per_hour": rate} for metric in RATES]
    verdict = {"verdict": command.says, "headline": "made up", "metrics": metrics}
    output = f"made up: {command.says}"
    return Ended(command, 0, 1.0, output, verdict=verdict if command.store else None)


def no_time(step: Step, left_s: float) -> str:
    """Return why ``step`` is not started."""
    return f"no time left ({left_s:.0f} s; it needs {step.least_s} s)"


def run_all(given: argparse.Namespace, scratch: Path, facts: Mapping[str, str]) -> bool:
    """Run the steps, writing the page after each; return whether all succeeded."""
    began_s = time.monotonic()
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    header = {"card": facts["card"], "memory": facts["memory"], "driver": driver()}
    header["commit"] = given.commit or commit()
    header |= {name: value for name, value in facts.items() if name not in header}
    site, logs = scratch / "site", scratch / "logs"
    logs.mkdir(parents=True)
    if given.wheels is not None:
        header["carried wheels"] = install(given.wheels, site)
    environment = environment_of(scratch, site)
    steps = plan(scratch)
    results = [Result(step) for step in steps]
    target = given.out / file_name(facts["card"], date)
    given.out.mkdir(parents=True, exist_ok=True)
    for number, step in enumerate(steps):
        left_s = given.budget_s - GRACE_S - (time.monotonic() - began_s)
        if left_s < step.least_s:
            results[number] = Result(step, reason=no_time(step, left_s))
        else:
            print(f"{step.title} ...", flush=True)
            results[number] = run_step(step, environment, min(step.limit_s, left_s), logs)
            for ended in results[number].ended:
                print(ended.output, ended.errors, sep="\n", flush=True)
        print(_outcome(results[number]), flush=True)
        target.write_text(page(header, results, date), encoding="utf-8")
    print(f"{target}, after {time.monotonic() - began_s:.0f} s")
    return all(result.is_right for result in results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every step succeeded, 1 if not, 2 without a device."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--budget-s", type=int, default=480, metavar="N", help="seconds for everything")
    add("--out", type=Path, default=PAGES, metavar="DIR", help="where the page is written")
    add("--wheels", type=Path, metavar="DIR", help="wheels of packages that may be missing")
    add("--commit", default="", help="commit of this checkout, if git is not available")
    add("--scratch", type=Path, metavar="DIR", help="keep runs and outputs in this new folder")
    add("--dry-run", action="store_true", help="print the commands and a page of made-up results")
    given = parser.parse_args(arguments)
    if given.dry_run:
        steps = plan(Path(tempfile.gettempdir()))
        for step in steps:
            print(f"{step.title}: {step.least_s} to {step.limit_s} s")
            print(*(f"  {_shown(command)}" for command in step.commands), sep="\n")
        print("", page({"card": "made up"}, examples(steps), "2026-01-01"), sep="\n")
        return 0
    facts = machine_facts()
    if "card" not in facts:
        torch = f"PyTorch {facts['torch']}" if facts else "PyTorch, which is not installed,"
        print(f"no CUDA device here: {torch} finds none, and nothing was run.", file=sys.stderr)
        return 2
    if given.scratch is not None:
        return int(not run_all(given, given.scratch.resolve(), facts))
    with tempfile.TemporaryDirectory() as scratch:
        return int(not run_all(given, Path(scratch), facts))


if __name__ == "__main__":
    sys.exit(main())
