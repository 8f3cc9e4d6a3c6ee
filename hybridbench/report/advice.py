"""What to do next, by verdict and finding: one sentence and, where there is one, a command."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
    "probe-stall": "Raise probe.collectible_every in the profile, or lower the ballast, then "
    "repeat the run.",
    "crash": "Read the last lines of the worker in the evidence; the samples up to that moment are "
    "complete.",
}

# A crash that left no line on standard error.
_SILENT_CRASH: Final = (
    "Check the kernel log (dmesg) for what killed the worker, which printed nothing; the samples "
    "up to that moment are complete."
)

# The share of a run that may follow its judged window: a pause, or the last events.
_BEHIND_MOST: Final = 0.25

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
    first = top_finding(verdict)
    if verdict.kind is VerdictKind.INCONCLUSIVE:
        if first is not None and first.kind in _NOT_BY_TIME:
            return Fact(NEXT, _BY_FINDING[first.kind])
        return _longer(verdict, manifest)
    text = _BY_VERDICT[verdict.kind]
    if first is not None and first.driver is not None and first.kind in _BY_DRIVEN_FINDING:
        event = singular(first.driver)
        text = _BY_DRIVEN_FINDING[first.kind].format(subject=_things(first), event=event)
    elif first is not None and first.kind == FindingCode.CRASH and not first.evidence:
        text = _SILENT_CRASH
    elif first is not None and (own := first.basis.advice(first)):
        text = own
    elif first is not None and first.kind in _BY_FINDING:
        text = _BY_FINDING[first.kind].format(subject=_things(first))
    again = "" if verdict.kind is VerdictKind.CLEAN else again_command(manifest)
    return Fact(NEXT, text, again)


def _things(finding: Finding) -> str:
    """What a finding is about without the pool before it: "state slots"."""
    return finding.subject.rpartition(": ")[2]


def top_finding(verdict: Verdict) -> Finding | None:
    """The finding that the verdict stands for, or the first one of another kind."""
    same = (finding for finding in verdict.findings if finding.verdict is verdict.kind)
    return next(same, next(iter(verdict.findings), None))


def again_command(manifest: Manifest, *changed: str) -> str:
    """What to type for the same run again; empty when no command is known that would do it.

    Args:
        manifest: of the run; its thresholds, those of a report on it included, are kept.
        changed: options with their values, in place of those of the run.
    """
    if manifest.version:
        # The run of one version: its command is `compare`, which has none of these options.
        return "" if changed else command_text(manifest.command)
    if not manifest.command:
        return ""
    kept = without_options(manifest.command, *changed[::2])
    added = [text for text in manifest.thresholds if not _has_threshold(kept, text)]
    words = [word for text in added for word in ("--threshold", text)]
    return command_text([*kept, *words, *changed])


def _has_threshold(command: Sequence[str], text: str) -> bool:
    return text in command or f"--threshold={text}" in command


def _longer(verdict: Verdict, manifest: Manifest) -> Fact:
    start_s, end_s = verdict.window_s or (0.0, manifest.planned_duration_s or 0.0)
    decided_s = max(_decided_at(verdict, start_s), default=None)
    length_s = _length_s(manifest.planned_duration_s or 0.0, end_s, decided_s)
    text = _BY_VERDICT[verdict.kind]
    if not length_s:
        return Fact(NEXT, text, again_command(manifest))
    # Whole minutes, rounded up: nobody types seconds for a soak.
    length = format_duration(60.0 * math.ceil(length_s / 60.0))
    if decided_s is not None:
        text = f"Run for {length}, warm-up included: that should decide what is still open."
    return Fact(NEXT, text, again_command(manifest, "--duration", length))


def _length_s(planned_s: float, end_s: float, decided_s: float | None) -> float:
    """How long the next run should be: always longer, unless this one was cut off.

    Args:
        planned_s: length of this run.
        end_s: of its judged window.
        decided_s: end of a window that would decide, if that is known.
    """
    behind_s = max(0.0, planned_s - end_s)
    if behind_s > _BEHIND_MOST * planned_s:
        # Cut off: what is behind the window is what it had left to serve.
        return max(planned_s, decided_s or 0.0)
    served_s = max(planned_s, end_s)
    longer_s = 0.0 if decided_s is None else decided_s + behind_s
    return longer_s if longer_s > served_s else 2.0 * served_s


def _decided_at(verdict: Verdict, start_s: float) -> Iterator[float]:
    """When each thing still open would be decided; ``start_s`` is that of the judged window."""
    for metric in verdict.metrics:
        if metric.needed_s is not None:
            yield metric.window_s[0] + metric.needed_s
    for result in verdict.thresholds:
        if result.needed_s is not None:
            yield start_s + result.needed_s
    for finding in verdict.findings:
        if finding.basis.needed_s is not None:
            yield start_s + finding.basis.needed_s
