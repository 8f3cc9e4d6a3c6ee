"""What to do next, by verdict and finding: one sentence and, if there is one, a command."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from hybridbench.foundation.units import format_duration
from hybridbench.records.finding import Finding, NextCommand, NextStep, VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import Verdict
from hybridbench.report.document import Fact
from hybridbench.report.wording import command_text, split_options
from hybridbench.rundir.layout import STORE

MEANING: Final[Mapping[VerdictKind, str]] = {
    VerdictKind.CLEAN: "No findings; the growth of every gated metric is within its limit or "
    "tolerance.",
    VerdictKind.LEAK: "Something that should be free is still held, or a resource keeps growing.",
    VerdictKind.DEGRADED: "Work becomes more expensive, the hit rate falls, or a threshold is "
    "missed.",
    VerdictKind.INVARIANT: "The engine's state contradicts itself, or its own check raised a false "
    "alarm.",
    VerdictKind.CORRUPT: "Answers differ from those of a reference without reuse by more than "
    "rounding can explain.",
    VerdictKind.INCONCLUSIVE: "Not decided: the data support neither a failure nor a pass.",
    VerdictKind.CRASHED: "The process died, hung or was killed, and no LEAK, INVARIANT or CORRUPT "
    "finding takes precedence.",
    VerdictKind.INVALID: "The run cannot support a verdict: it did not exercise or measure what it "
    "should.",
}

NEXT: Final = "Next"

# Largest share of a run that normally follows its judged window, with a pause or the last events.
_BEHIND_MOST: Final = 0.25

_BY_VERDICT: Final[Mapping[VerdictKind, str]] = {
    VerdictKind.LEAK: "Follow the evidence below to the code path that acquires and does not "
    "release, then repeat the run.",
    VerdictKind.DEGRADED: "Compare the charts of throughput and latency with the event rates, then "
    "repeat the run to confirm it.",
    VerdictKind.INVARIANT: "Do not rely on other numbers of this run; the evidence names the state "
    "that contradicts itself.",
    VerdictKind.CORRUPT: "Follow what the wrong answers have in common to the code that serves "
    "such requests, then repeat the run.",
    VerdictKind.CRASHED: "Read the last lines of the worker in the evidence, then repeat the run.",
    VerdictKind.INVALID: "If counters are marked NOT MET, choose a profile or a duration that "
    "reaches them; otherwise repeat the run on an idle machine.",
    VerdictKind.CLEAN: "No action needed. Run longer to rule out smaller leaks.",
    VerdictKind.INCONCLUSIVE: "Run longer.",
}


def next_step(verdict: Verdict, manifest: Manifest, *, interrupted: bool = False) -> Fact:
    """Return the last line of the answer; ``interrupted`` means that a signal ended the run."""
    resumable = interrupted and manifest.engine_hash and manifest.command and not manifest.version
    if resumable and verdict.kind is VerdictKind.INCONCLUSIVE:
        command = command_text(["hybridbench", "soak", "--resume", _stored_at(manifest)])
        return Fact(NEXT, "Resume the run: it serves the rest of its traffic.", command)
    first = top_finding(verdict)
    by_length = first is None or first.basis.needs_longer_run
    step = NextStep("", NextCommand.AGAIN) if first is None else first.basis.next_step(first)
    # A longer run helps only if this one was long enough to be judged, or there is no other advice.
    longer_helps = verdict.window_s is not None or not step.text
    if verdict.kind is VerdictKind.INCONCLUSIVE and by_length and longer_helps:
        return _longer(verdict, manifest)
    clean = verdict.kind is VerdictKind.CLEAN
    command = "" if clean else _command(step.command, manifest)
    return Fact(NEXT, step.text or _BY_VERDICT[verdict.kind], command)


def _command(command: NextCommand, manifest: Manifest) -> str:
    if command is NextCommand.AGAIN:
        return again_command(manifest)
    judges = command is NextCommand.REPORT and manifest.run_id
    return command_text(["hybridbench", "report", _stored_at(manifest)]) if judges else ""


def _stored_at(manifest: Manifest) -> str:
    """Return the run's directory, as seen from where its command was typed."""
    ours, _ = _parts(manifest.command)
    given, _ = split_options(ours, "--store")
    store = given[-1].removeprefix("--store=") if given else STORE
    return str(Path(store) / manifest.run_id)


def top_finding(verdict: Verdict) -> Finding | None:
    """Return the first finding with the verdict's kind, or else the first finding."""
    same = (finding for finding in verdict.findings if finding.verdict is verdict.kind)
    return next(same, next(iter(verdict.findings), None))


def again_command(manifest: Manifest, *changed: str) -> str:
    """Return the command that repeats the run; empty if none is known.

    Args:
        manifest: the run's manifest; its thresholds are kept, including those of a report on it.
        changed: options with their values, replacing those of the run.
    """
    if manifest.version:
        # The run belongs to a comparison: its command is `compare`, without these options.
        return "" if changed else command_text(manifest.command)
    if not manifest.command:
        return ""
    ours, target = _parts(manifest.command)
    _, kept = split_options(ours, *changed[::2])
    for text in manifest.thresholds:
        if text not in kept and f"--threshold={text}" not in kept:
            kept += ["--threshold", text]
    return command_text([*kept, *changed, *target])


def _parts(command: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split into the words for hybridbench and, from ``--`` on, those for the watched program."""
    at = command.index("--") if "--" in command else len(command)
    return command[:at], command[at:]


def _longer(verdict: Verdict, manifest: Manifest) -> Fact:
    planned_s = manifest.planned_duration_s or 0.0
    start_s, end_s = verdict.window_s or (0.0, planned_s)
    decided_s = max(_decided_at(verdict, start_s), default=None)
    length_s = _length_s(planned_s, end_s, decided_s)
    text = _BY_VERDICT[verdict.kind]
    if not length_s:
        return Fact(NEXT, text, again_command(manifest))
    if not _is_foreseen(verdict):
        length_s, decided_s = max(length_s, 2.0 * end_s), None
    length = _in_minutes(length_s)
    if decided_s is not None:
        text = f"Run for {length}, warm-up included: that should decide what is still open."
    first = top_finding(verdict)
    if first is not None and first.basis.needed_s is not None:
        sooner = _in_minutes(_length_s(planned_s, end_s, start_s + first.basis.needed_s))
        if sooner != length:
            text = (
                f"Run for {sooner}, warm-up included: that should decide the first finding. "
                f"All that is open may take {length} or more."
            )
            length = sooner
    return Fact(NEXT, text, again_command(manifest, "--duration", length))


def _in_minutes(seconds: float) -> str:
    """Round up to whole minutes, as users would type."""
    return format_duration(60.0 * math.ceil(seconds / 60.0))


def _length_s(planned_s: float, end_s: float, decided_s: float | None) -> float:
    """Return how long the next run should be: always longer, unless this one was cut short.

    Args:
        planned_s: length of this run.
        end_s: end of its judged window.
        decided_s: end of a window that would decide, if known.
    """
    behind_s = max(0.0, planned_s - end_s)
    if behind_s > _BEHIND_MOST * planned_s:
        # Cut short: the time after the window remained to be served.
        return max(planned_s, decided_s or 0.0)
    served_s = max(planned_s, end_s)
    longer_s = 0.0 if decided_s is None else decided_s + behind_s
    return longer_s if longer_s > served_s else 2.0 * served_s


def _is_foreseen(verdict: Verdict) -> bool:
    """Whether it is known of each open finding how long a run would decide it."""
    return all(
        finding.basis.needed_s is not None
        for finding in verdict.findings
        if finding.verdict is VerdictKind.INCONCLUSIVE and finding.basis.needs_longer_run
    )


def _decided_at(verdict: Verdict, start_s: float) -> Iterator[float]:
    """Yield when each undecided item would be decided; the judged window begins at ``start_s``."""
    for metric in verdict.metrics:
        if metric.needed_s is not None:
            yield metric.window_s[0] + metric.needed_s
    for result in verdict.thresholds:
        if result.needed_s is not None:
            yield start_s + result.needed_s
    for finding in verdict.findings:
        if finding.basis.needed_s is not None:
            yield start_s + finding.basis.needed_s
