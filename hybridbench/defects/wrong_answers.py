"""The common part of defects that change only answers: every pool balances."""

from __future__ import annotations

from hybridbench.defects.defect import Signature


def answers(event: str, rate: str, harm: str) -> Signature:
    """Return the signature of a defect that shows only in the tokens.

    The finding counts the sampled wrong answers that do not continue from another wrong answer:
    each of those needs a separate event.

    Args:
        event: what drives it, in words.
        rate: how much per event, in words.
        harm: name of the truth count that measures the damage.
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
