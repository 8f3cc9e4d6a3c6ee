"""The possible owners of a slot, and the errors that a wrong transfer raises.

An owner is a small int rather than an enum member: a ledger compares millions of them, and an
enum doubled the measured cost of a move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NewType

Owner = NewType("Owner", int)

FREE: Final = Owner(0)
REQ: Final = Owner(1)
TREE: Final = Owner(2)
SESSION: Final = Owner(3)
TRACK: Final = Owner(4)
HOST: Final = Owner(5)
RESERVED: Final = Owner(6)

_NAMES: Final = ("FREE", "REQ", "TREE", "SESSION", "TRACK", "HOST", "RESERVED")
OWNER_COUNT: Final = len(_NAMES)

# Messages cut long lists of slots: the first few are enough to find the mistake.
_SHOWN_SLOTS: Final = 8


def owner_name(owner: Owner) -> str:
    """The name of ``owner`` in messages and reports."""
    return _NAMES[owner]


class OwnershipError(RuntimeError):
    """A caller freed or transferred a slot that it does not hold.  Nothing was changed."""


class DoubleFreeError(OwnershipError):
    """A freed slot was already free, or was passed twice in one call."""


class ForeignFreeError(OwnershipError):
    """A slot was freed by a caller that does not hold it."""


class ReservedSlotError(OwnershipError):
    """The slot is never handed out (the dump slot 0), or reserved by an open group."""


class UnknownSlotError(OwnershipError):
    """A slot number outside the pool."""


class DeviceMismatchError(OwnershipError):
    """An index tensor is not on the allocator's device."""


def shown(slots: Sequence[int]) -> str:
    """``slots`` as text, truncated after a few: ``[3, 4, 5] and 12 more``."""
    head = list(slots[:_SHOWN_SLOTS])
    more = len(slots) - len(head)
    return f"{head} and {more} more" if more else f"{head}"


def refusal(
    what: str, action: str, slots: Sequence[int], holder: Owner, claimed: Owner
) -> OwnershipError:
    """Build the error for ``action`` on ``slots`` that belong to ``holder``, not ``claimed``.

    Args:
        what: the unit in the plural: "state slots", "KV pages".
        action: "free" or "transfer".
        slots: the slots in question, at least one.
        holder: their owner.
        claimed: the owner that the caller passed.
    """
    message = (
        f"cannot {action} {what} {shown(slots)}: "
        f"held by {owner_name(holder)}, not {owner_name(claimed)}"
    )
    if holder == RESERVED:
        return ReservedSlotError(f"{message} (slot 0 and open groups have no owner)")
    if action != "free":
        return OwnershipError(message)
    return DoubleFreeError(message) if holder == FREE else ForeignFreeError(message)
