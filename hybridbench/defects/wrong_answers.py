"""What defects have in common that change answers and nothing else: every pool balances."""

from __future__ import annotations

from hybridbench.defects.defect import Signature


def answers(event: str, rate: str, harm: str, duration_s: float = 150.0) -> Signature:
    """The signature of a defect whose only trace is in the tokens.

    No check of a soak looks at tokens, so CLEAN is what is reported of it.

    Args:
        event: what drives it, in words.
        rate: how much for each event, in words.
        harm: name of the truth's count of what was done.
        duration_s: how long a run must be for several wrong answers.
    """
    return Signature(
        verdicts=("CLEAN",),
        kinds=(),
        subject="",
        event=event,
        rate=rate,
        harm=harm,
        duration_s=duration_s,
    )
