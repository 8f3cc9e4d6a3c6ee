"""Switches that the field's constructors have for things this engine does not do.

They are accepted so that a call written for SGLang needs no editing.  Only the value that asks for
nothing is served: a caller who relies on the thing must hear that it is not there.
"""

from __future__ import annotations


def refuse_unserved(**asked: bool) -> None:
    """Raise if any of the switches is on.

    Raises:
        ValueError: naming the switches.
    """
    on = [name for name, value in asked.items() if value]
    if on:
        raise ValueError(f"{', '.join(on)}: not supported by this engine; leave it out")
