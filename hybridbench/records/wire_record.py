"""The wire format of records: arrays, with a tag for messages."""

from __future__ import annotations

import msgspec


class WireRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part of a message: an array without a tag.  Fields may only be added at the end."""


class WireMessage(msgspec.Struct, tag=True, array_like=True, gc=False, frozen=True):
    """A message: an array with a tag.  Fields may only be added at the end."""
