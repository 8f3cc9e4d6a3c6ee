"""What to do next, by verdict and finding: one sentence and, where there is one, a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from hybridbench.analysis.facts.counters import singular
from hybridbench.records.codes import FindingCode
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import Finding, Verdict, VerdictKind
from hybridbench.report.document import Fact
from hybridbench.report.wording import command_text, without_options
from hybridbench.units import format_duration

MEANING: Final[Mapping[VerdictKind, str]] = {
    VerdictKind.CLEAN: "No findings; the growth of every gated metric is within its limit or "
    "tolerance.",
    VerdictKind.LEAK: "Something that should be free is still held, or a resource keeps growing.",
    VerdictKind.DEGRADED: "Work becomes more expensive, the hit rate falls, or a threshold is "
    "missed.",
    VerdictKind.INVARIANT: "The engine's state contradicts itself, or its own check raised a false "
    "alarm.",
    VerdictKind.INCONCLUSIVE: "Not decided: the data support neither a failure nor a pass.",
    VerdictKind.CRASHED: "The worker died, hung or was killed, and no LEAK or INVARIANT finding "
    "takes precedence.",
    VerdictKind.INVALID: "The run cannot support a verdict: it did not exercise or measure what it "
    "should.",
}

NEXT: Final = "Next"

_BY_FINDING: Final[Mapping[str, str]] = {
    "instances-wait-for-collector": "Find where {subject} is unlinked and clear its remaining "
    "pointers there (prev and next): an object in no cycle is freed by reference count at once.",
    "waiting-holds-slots": "Find where {subject} are allocated before the last admission check, "
    "and release them on every refusal; a waiting request must hold nothing.",
    "residual": "Check every exit path of a request (finish, abort, retract, refusal) for a "
    "missing release of {subject}; verdict.json names the checkpoint at which the loss appears.",
    "instances-retained": "Find what still refers to the removed {subject} objects "
    "(gc.get_referrers in the live process, or the diagnosis) and clear that reference where they "
    "are removed; a full gc.collect() does not free them.",
    "held-at-idle": "Look for a request or a transfer that was removed from every list without "
    "being released: nothing else frees its {subject}.",
    "locks-at-idle": "Check that lock and unlock traverse the same nodes, in particular after a "
    "node split, and that an idle engine still acknowledges the transfers that hold a lock.",
    "container-grows": "Find where entries of {subject} are removed, and which exit path of a "
    "request skips that.",
    "running-without-client": "Trace how a client's disconnect is handled: the request's entry "
    "must exist until its abort has been processed.",
    "request-too-old": "Inspect the oldest request in the engine: it waits for a completion that "
    "was lost, and holds its slots until then.",
    "stalled": "Check why the scheduler refuses its oldest request: a full pool, a lock, or a "
    "transfer that was never acknowledged.",
    "not-idle": "Find what the engine was still waiting for when the run ended: its oldest "
    "request, or a transfer that was never acknowledged.",
    "negative-count": "Find the second code path that subtracts the same amount from {subject}.",
    "more-free-than-exist": "Find the slot that is in the free list of {subject} twice: it will be "
    "allocated to two requests at once.",
    "growth": "Compare the growth with the event rates below: the counter that rises with it names "
    "the path. Then repeat the run with that event alone.",
    "decay": "Look at the charts under Cost of work: the time that rises alone names the code "
    "path; what it rises with (leaves of the tree, live objects) is what that path iterates over.",
    "below-threshold": "Compare with a healthy run of the same profile: {subject} missed its limit "
    "from the start, so no trend shows the cause.",
    "workload-failed": "Correct the {subject} at the place named above, then repeat the run or "
    "continue it with --resume; --dry-run checks a whole trace first.",
    "analysis-failed": "Report this with analysis-errors.txt of the run; a fixed version can judge "
    "the stored samples again with `hybridbench report`.",
    "bench-failed": "Report this with bench-errors.txt of the run, then repeat the run.",
    "unreadable": "Find what wrote these samples: check the engine's counters and the sampler for "
    "the series named in the evidence.",
    "crash": "Read the last lines of the worker in the evidence; the samples up to that moment are "
    "complete.",
}

# A crash that left no line on standard error.
_SILENT_CRASH: Final = (
    "Check the kernel log (dmesg) for what killed the worker, which printed nothing; the samples "
    "up to that moment are complete."
)

# What a longer run does not decide.
_NOT_BY_TIME = (FindingCode.ANALYSIS_FAILED, FindingCode.BENCH_FAILED, FindingCode.UNREADABLE)

# The same where the finding knows the event: then the search begins there.
_BY_DRIVEN_FINDING: Final[Mapping[str, str]] = {
    "residual": "Start with the {event} handler: it acquires {subject} and never releases them; "
    "verdict.json names the checkpoint at which the loss appears.",
    "container-grows": "Start with the {event} handler: it adds entries to {subject} and never "
    "removes them.",
}

_BY_VERDICT: Final[Mapping[VerdictKind, str]] = {
    VerdictKind.LEAK: "Follow the evidence below to the code path that acquires and does not "
    "release, then repeat the run.",
    VerdictKind.DEGRADED: "Compare the charts of throughput and latency with the event rates, then "
    "repeat the run to confirm it.",
    VerdictKind.INVARIANT: "Do not rely on other numbers of this run; the evidence names the state "
    "that contradicts itself.",
    VerdictKind.CRASHED: "Read the last lines of the worker in the evidence, then repeat the run.",
    VerdictKind.INVALID: "If counters are marked NOT MET, choose a profile or a duration that "
    "reaches them; otherwise repeat the run on an idle machine.",
    VerdictKind.CLEAN: "No action needed. Run longer to rule out smaller leaks.",
    VerdictKind.INCONCLUSIVE: "Run longer.",
}


def next_step(verdict: Verdict, manifest: Manifest) -> Fact:
    """The last line of the answer."""
    command = manifest.command
    first = top_finding(verdict)
    if verdict.kind is VerdictKind.INCONCLUSIVE:
        if first is not None and first.kind in _NOT_BY_TIME:
            return Fact(NEXT, _BY_FINDING[first.kind])
        return _longer(verdict, command)
    text = _BY_VERDICT[verdict.kind]
    if first is not None and first.driver is not None and first.kind in _BY_DRIVEN_FINDING:
        event = singular(first.driver)
        text = _BY_DRIVEN_FINDING[first.kind].format(subject=_things(first), event=event)
    elif first is not None and first.kind == FindingCode.CRASH and not first.evidence:
        text = _SILENT_CRASH
    elif first is not None and first.kind in _BY_FINDING:
        text = _BY_FINDING[first.kind].format(subject=_things(first))
    again = "" if verdict.kind is VerdictKind.CLEAN else command_text(command)
    return Fact(NEXT, text, again)


def _things(finding: Finding) -> str:
    """What a finding is about without the pool before it: "state slots"."""
    return finding.subject.rpartition(": ")[2]


def top_finding(verdict: Verdict) -> Finding | None:
    """The finding that the verdict stands for, or the first one of another kind."""
    same = (finding for finding in verdict.findings if finding.verdict is verdict.kind)
    return next(same, next(iter(verdict.findings), None))


def _longer(verdict: Verdict, command: Sequence[str]) -> Fact:
    needed = [result.needed_s for result in verdict.metrics if result.needed_s is not None]
    if not needed:
        return Fact(NEXT, _BY_VERDICT[verdict.kind], command_text(command))
    # Whole minutes, rounded up: nobody types seconds for a soak.
    length = format_duration(60.0 * -(-max(needed) // 60))
    text = f"Run {length}: that should decide every metric still open."
    return Fact(NEXT, text, command_text(_with_duration(command, length)))


def _with_duration(command: Sequence[str], length: str) -> Sequence[str]:
    """``command`` with its ``--duration`` replaced, or added at the end."""
    return [*without_options(command, "--duration"), "--duration", length] if command else []
