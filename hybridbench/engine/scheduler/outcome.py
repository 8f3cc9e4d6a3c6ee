"""The outcome of one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from hybridbench.engine.req import Req


@dataclass(slots=True)
class StepOutcome:
    """The requests that one step affected, for the front end to report."""

    admitted: list[Req] = field(default_factory=list)
    produced: list[Req] = field(default_factory=list)  # one entry per token
    finished: list[Req] = field(default_factory=list)
    aborted: list[Req] = field(default_factory=list)
