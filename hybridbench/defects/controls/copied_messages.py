"""The healthy twin of ``pinned-receive-buffers``: the same reads; messages leave their buffers."""

from __future__ import annotations

from hybridbench.defects.omi6938_pinned_buffers import Messages
from hybridbench.defects.paced import gives_back

DEFECT = gives_back(
    "copied-messages",
    "omi#6938",
    "receive buffers, 512 KiB each and 4 GiB an hour, go back whole; the messages are as many.",
    Messages(copies=True).read_next,
)
