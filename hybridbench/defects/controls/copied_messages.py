"""The healthy twin of ``pinned-receive-buffers``: the same reads, with messages copied out."""

from __future__ import annotations

from hybridbench.defects.omi6938_pinned_buffers import Messages
from hybridbench.defects.paced import gives_back

DEFECT = gives_back(
    "copied-messages",
    "omi#6938",
    "Receive buffers, 512 KiB each and 4 GiB per hour, are freed whole; only copies of the short "
    "messages are kept.",
    Messages(copies=True).read_next,
)
