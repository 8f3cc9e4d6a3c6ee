"""The common part of defects that change answers and nothing else: every pool balances."""

from __future__ import annotations

from hybridbench.defects.defect import Signature


def answers(event: str, rate: str, harm: str) -> Signature:
    """The signature of a defect whose only trace is in the tokens.

    It counts the sampled answers that do not continue from another wrong answer: each of them needs
    an event of its own.

    Args:
        event: what drives it, in words.
        rate: how much per event, in words.
        harm: name of the truth's count of what was done.
    """
    return Signature(
        verdicts=("CORRUPT",),
        kinds=("wrong-answers",),
        subject="answers",
        event=event,
        rate=rate,
        harm=harm,
        counted="wrong_first",
        at_most=True,
        duration_s=120.0,
        quick_s=0.0,
    )
